"""What `tracegrad doctor` says of the spool, from a running sidecar's own words."""

from pathlib import Path
from typing import Any

import pytest
from fake_vllm import FakeVllm
from full_disk import full_disk
from sidecar_harness import Harness

from tracegrad.doctor import Finding, _continuations
from tracegrad.doctor_spool import examine_spool, judged
from tracegrad.settings import Settings

SETTINGS = Settings.model_validate({"sidecar": {"spool_bytes": 10 << 20, "workers": 2, "data": "/somewhere"}})


def page(waiting_bytes: int, *, failing: int = 0, lost: int = 0) -> str:
    lines = {
        "spool_waiting_bytes": waiting_bytes,
        "spool_disk_failing": failing,
        'spans_total{state="sent"}': 5,
        'spans_total{state="dropped_spool_full"}': lost,
    }
    return "".join(f"tracegrad_sidecar_{name} {value}\n" for name, value in lines.items())


@pytest.mark.parametrize(
    ("told", "verdicts", "said"),
    [
        (page(1 << 20), ["ok"], "1.0 of 20 MiB wait"),
        (page(17 << 20), ["warn"], "17 of 20 MiB wait for the collector; what does not fit is lost"),
        (page(0, failing=1), ["fail"], "the disk takes no spans"),
        (page(0, lost=3), ["ok", "warn"], "3 spans lost"),
        ("something else\n", [], ""),
    ],
)
def test_what_the_metrics_mean(told: str, verdicts: list[str], said: str) -> None:
    found = list(judged(told, SETTINGS))
    assert [one.verdict for one in found] == verdicts
    assert said in "".join(one.what for one in found)
    assert all(one.advice for one in found if one.verdict != "ok")


async def test_a_running_sidecar_tells(harness: Harness) -> None:
    settings = Settings.model_validate({"sidecar_admin_url": harness.admin})
    assert await examine_spool(settings) == [Finding("span spool", "ok", "0.0 of 1024 MiB wait for the collector")]
    assert await examine_spool(Settings.model_validate({"sidecar_admin_url": "http://127.0.0.1:9"})) == []


def test_what_is_set_already_is_not_advised() -> None:
    told = {"state": "unknown", "why": "no answer", "setting": "tokens"}
    (finding,) = _continuations([{"name": "policy", "continuation": told}])
    assert finding.advice.endswith("set continuation in its [[model]] entry (off)")
    (finding,) = _continuations([{"name": "policy", "continuation": told | {"setting": "auto"}}])
    assert finding.advice.endswith("(tokens or off)")


async def test_a_full_disk_names_the_file_of_prompts(harness_for: Any, fake: FakeVllm, tmp_path: Path) -> None:
    data = tmp_path / "prompts-here"
    harness: Harness = await harness_for({"name": "policy", "upstream": fake.url}, limits={"data": data})
    url, body = f"{harness.admin}/prompts/p", {"variants": [{"version": 1, "text": "one"}]}
    with full_disk():
        answer = await harness.session.put(url, json=body)
    assert answer.status == 500
    said = (await answer.json())["error"]
    assert said.startswith(f"prompts cannot be kept in {data / 'prompts.json'} (File too large): make room there")
    answer = await harness.session.get(url)
    assert (await answer.json())["error"] == "no prompt 'p': `tracegrad prompt list` shows which there are"
