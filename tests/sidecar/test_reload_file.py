"""A configuration file that has gone, or is empty for a moment, opens no door."""

import logging
import os
import signal
from pathlib import Path

import aiohttp
import pytest
from fake_vllm import FakeVllm
from sidecar_process import configuration, sidecar_process
from stand_ins import Receiver

from sidecar.operation import warn_of_open_doors
from tracegrad.configuration import Configuration
from tracegrad.errors import SettingsError
from tracegrad.settings import Settings

TENANT = '[[tenant]]\nname = "a"\nkey = "key-a"\n'


@pytest.mark.parametrize("named", [True, False])
def test_a_file_that_was_there_must_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("tracegrad.toml")
    file.write_text(TENANT)
    read = Configuration(file if named else None).read
    assert read().tenant
    for content in (None, "", " \n"):
        file.unlink() if content is None else file.write_text(content)
        with pytest.raises(SettingsError, match=r"tracegrad\.toml is gone or empty"):
            read()
    file.write_text(TENANT)
    assert read().tenant


def test_one_that_was_not_there_need_not_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    read = Configuration(None).read
    assert read().model == ()
    Path("tracegrad.toml").write_text(TENANT)
    assert read().tenant, "one that appears is taken up"
    Path("tracegrad.toml").unlink()
    with pytest.raises(SettingsError, match="is gone or empty"):
        read()
    Path("empty.toml").write_text("# nothing yet\n")
    assert Configuration(Path("empty.toml")).read().model == ()


def test_keys_that_are_not_asked_for_any_more_are_said_loudly(caplog: pytest.LogCaptureFixture) -> None:
    before = Settings.model_validate({"tenant": [{"name": "a", "key": "key-a"}], "sidecar": {"admin_key": "key-b"}})
    warn_of_open_doors(before, before)
    assert caplog.records == []
    warn_of_open_doors(before, Settings())
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "the agents' port asks for no key any more" in caplog.text
    assert "the admin port asks for no key any more" in caplog.text


async def test_a_hangup_without_the_file_changes_nothing(tmp_path: Path, fake: FakeVllm, receiver: Receiver) -> None:
    file = configuration(tmp_path, receiver.url, {"name": "policy", "policy": "policy", "upstream": fake.url})
    file.write_text(file.read_text() + TENANT)
    async with sidecar_process(file) as running, aiohttp.ClientSession() as client:
        file.rename(tmp_path / "moved")
        running.signal(signal.SIGHUP)
        await running.told("is gone or empty")
        os.truncate(tmp_path / "moved", 0)
        (tmp_path / "moved").rename(file)
        async with client.post(f"{running.admin}/reload") as answer:
            assert answer.status == 400
            assert "is gone or empty" in (await answer.json())["error"]
        body = {"model": "policy", "messages": []}
        async with client.post(f"{running.url}/v1/chat/completions", json=body) as answer:
            assert answer.status == 401
