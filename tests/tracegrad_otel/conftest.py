"""A model and an OTLP receiver for every test, and a function that runs a script as an instrumented agent."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stand_ins import Model, Receiver, model_fixture, receiver_fixture

__all__ = ["model_fixture", "receiver_fixture"]

BIN = Path(sys.executable).parent
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(receiver: Receiver, model: Model) -> dict[str, str]:
    """What a user sets, and nothing of OpenTelemetry but where this test's receiver is."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENAI_"))}
    return inherited | {
        "OPENAI_BASE_URL": f"{model.url}/v1",
        "OPENAI_API_KEY": "unused",
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
    }


@pytest.fixture
def run(environment: dict[str, str], tmp_path: Path) -> Run:
    """Run source as `opentelemetry-instrument python agent.py ...`; `instrumented=False` leaves the first off."""

    def start(
        source: str, *arguments: str, instrumented: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "agent.py"
        script.write_text(source)
        instrument = [str(BIN / "opentelemetry-instrument")] if instrumented else []
        return subprocess.run(
            [*instrument, sys.executable, str(script), *arguments],
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )

    return start
