"""Settings that point at a model stand-in (as the sidecar) and an OTLP receiver (as the collector)."""

import sys
from pathlib import Path

import pytest
from stand_ins import Model, Receiver, model_fixture, receiver_fixture

from tracegrad.settings import Settings

__all__ = ["model_fixture", "receiver_fixture"]

BIN = Path(sys.executable).parent


@pytest.fixture
def settings(receiver: Receiver, model: Model, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What `tracegrad rollout` reads; the environment names the same, for tests of the command."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRACEGRAD_OTLP", receiver.url)
    monkeypatch.setenv("TRACEGRAD_SIDECAR_URL", model.url)
    return Settings(otlp=receiver.url, sidecar_url=model.url)
