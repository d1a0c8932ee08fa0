"""`tracegrad policy` and `tracegrad prompt` against a running sidecar, as people and programs use them."""

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from fake_vllm import FakeVllm
from sidecar_harness import listening
from typer.testing import CliRunner
from weight_bytes import safetensors

from sidecar.server import serve
from tracegrad.cli import app, policy
from tracegrad.cli.prompt_change import Change
from tracegrad.errors import InputError
from tracegrad.settings import Settings

NOBODY = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)


async def tracegrad(*arguments: str, given: str = "", **environment: str) -> Result:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tracegrad", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"COLUMNS": "80"} | environment,
    )
    out, err = await asyncio.wait_for(process.communicate(given.encode()), 60)
    assert process.returncode is not None
    return Result(process.returncode, out.decode(), err.decode())


Run = Callable[..., Awaitable[Result]]


@contextlib.asynccontextmanager
async def running(tmp_path: Path) -> AsyncIterator[tuple[Run, FakeVllm]]:
    """A sidecar in front of a fake engine, and a function that runs `tracegrad` beside it."""
    fake = FakeVllm()
    weights = tmp_path / "weights"
    weights.mkdir()
    async with listening(fake.application()) as fake.url:
        settings = Settings.model_validate(
            {
                "otlp": NOBODY,
                "sidecar": {"port": 0, "admin_port": 0, "weights": weights, "data": tmp_path / "data"},
                "model": [{"name": "policy", "upstream": fake.url, "policy": "policy"}],
            }
        )
        async with serve(settings, shutdown_s=0.1) as ports:

            async def run(*arguments: str, **more: str) -> Result:
                admin = f"http://127.0.0.1:{ports.admin_port}"
                return await tracegrad(*arguments, **({"TRACEGRAD_SIDECAR_ADMIN_URL": admin} | more))

            yield run, fake


@pytest.mark.parametrize(
    "command",
    [
        *("policy", "policy list", "policy publish", "policy pause", "policy resume", "policy forget"),
        *("prompt", "prompt list", "prompt show", "prompt set", "prompt delete"),
    ],
)
def test_every_help_has_an_example_and_the_configuration_file(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "80"})
    assert result.exit_code == 0
    assert re.search(rf"Example:\s+tracegrad {command}", result.output)
    assert "--config" in result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("policy", "bogus"),
        ("policy", "publish", "policy", "--version", "1"),
        ("policy", "publish", "policy", "--version", "0", "--weights", "x"),
        ("prompt", "set", "a"),
        ("prompt", "set", "a", "--weight", "2"),
        ("prompt", "set", "a", "--text", "x", "--text-file", "y"),
        ("prompt", "set", "a", "--file", "x", "--disable"),
        ("prompt", "set", "a", "--text", "x", "--match-header", "nothing"),
    ],
)
def test_bad_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, arguments, env={"TRACEGRAD_SIDECAR_ADMIN_URL": NOBODY})
    assert result.exit_code == 2, result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("policy", "list"), f"no sidecar answers at {NOBODY}"),
        (("prompt", "list", "--json"), "start one with `tracegrad sidecar`"),
        (("policy", "publish", "p", "--version", "1", "--weights", "/no/such"), "/no/such is neither"),
        (("prompt", "set", "a", "--file", "/no/such"), "/no/such cannot be read"),
        (("prompt", "list", "--config", "absent.toml"), "absent.toml"),
        (("prompt", "--config", "absent.toml", "list"), "absent.toml"),
    ],
)
async def test_a_failure_is_status_1_and_one_line(arguments: tuple[str, ...], said: str) -> None:
    result = await tracegrad(*arguments, TRACEGRAD_SIDECAR_ADMIN_URL=NOBODY)
    assert (result.status, result.out) == (1, "")
    (line,) = result.err.splitlines()
    assert said in line


@pytest.mark.parametrize("content", [b"<html>", b"[1]"])
async def test_something_else_that_answers_is_named(content: bytes) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=content)

    front = web.Application()
    front.router.add_route("*", "/{path:.*}", answer)
    async with listening(front) as url:
        result = await tracegrad("policy", "list", TRACEGRAD_SIDECAR_ADMIN_URL=url)
    assert (result.status, "is not a sidecar's admin port" in result.err) == (1, True)


async def test_the_key_of_the_admin_port_is_presented_and_never_shown(tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("authorization"))
        return web.json_response({"error": "not this key"}, status=401)

    front = web.Application()
    front.router.add_route("*", "/{path:.*}", answer)
    key = tmp_path / "key"
    key.write_text("sk-admin\n")
    async with listening(front) as url:
        environment = {"TRACEGRAD_SIDECAR_ADMIN_URL": url, "TRACEGRAD_SIDECAR_ADMIN_KEY_FILE": str(key)}
        result = await tracegrad("policy", "list", **environment)
    assert seen == ["Bearer sk-admin"]
    assert (result.status, result.err) == (1, "tracegrad: not this key\n")


async def test_policies_from_listing_to_publishing(tmp_path: Path) -> None:
    async with running(tmp_path) as (run, fake):
        listed = await run("policy", "list")
        assert listed.out.splitlines()[0].split() == ["POLICY", "VERSION", "MODEL", "REPLICA", "RUNS", "STATE"]
        assert listed.out.splitlines()[1].split() == ["policy", "0", "policy", fake.url, "0", "serves"]
        weights = tmp_path / "weights" / "policy" / "3"
        weights.mkdir(parents=True)
        (weights / "model.safetensors").write_bytes(safetensors(b"weights"))
        publish = ("policy", "publish", "policy", "--weights")
        published = await run(*publish, str(weights), "--version", "3")
        assert published.status == 0, published.err
        assert published.out.splitlines()[1].split()[:2] == ["policy", "3"]
        assert fake.version == "3"
        again = (await run(*publish, str(weights / "model.safetensors"), "--version", "3", "--json")).json
        assert (again["name"], again["version"]) == ("policy", 3)
        (weights / "model.safetensors").write_bytes(safetensors(b"others"))
        refused = await run(*publish, str(weights), "--version", "3")
        assert (refused.status, "use a new version" in refused.err) == (1, True)
        outside = tmp_path / "model.safetensors"
        outside.write_bytes(safetensors())
        refused = await run(*publish, str(outside), "--version", "4")
        assert (refused.status, "must lie under" in refused.err) == (1, True)
        assert (await run("policy", "pause", "policy", "--json")).json["replicas"][0]["paused"] is True
        assert "paused" in (await run("policy", "list")).out
        assert "serves" in (await run("policy", "resume", "policy")).out
        fake.version = "9"
        while "last resort" not in (listed := (await run("policy", "list")).out):
            pass
        assert "version 9 was not published here" in listed
        assert "`tracegrad policy forget policy`" in listed
        forgotten = (await run("policy", "forget", "policy")).out
        assert forgotten.splitlines()[1].split() == ["policy", "9", "policy", fake.url, "9", "serves"]
        unknown = await run("policy", "pause", "other")
        assert (unknown.status, unknown.err) == (1, "tracegrad: no policy 'other'; known: policy\n")


async def test_prompts_from_setting_to_deleting(tmp_path: Path) -> None:
    async with running(tmp_path) as (run, _):
        assert "no prompts" in (await run("prompt", "list")).out
        first = await run(
            "prompt", "set", "writer", "--text", "{system} Be brief.", "--match-agent", "writer", "--json"
        )
        assert first.json == {
            "name": "writer",
            "enabled": True,
            "match": {"agent": "writer"},
            "variants": [{"version": 1, "weight": 1.0, "text": "{system} Be brief."}],
            "retired": [],
        }
        better = await run("prompt", "set", "writer", "--text-file", "-", "--weight", "3", given="Write\nwell.")
        assert better.out.splitlines()[0] == "writer: in force; matches agent writer; versions 1 (25%), 2 (75%)"
        assert "--- version 2, weight 3\nWrite\nwell.\n" in better.out
        listed = (await run("prompt", "list")).out.splitlines()
        assert listed[0].split() == ["PROMPT", "MATCHES", "VERSIONS", "STATE"]
        assert re.split("  +", listed[1]) == ["writer", "agent writer", "1 (25%), 2 (75%)", "in force"]
        changed = await run("prompt", "set", "writer", "--version", "1", "--text", "other")
        assert (changed.status, "use a new version" in changed.err) == (1, True)
        file = tmp_path / "variants.json"
        file.write_text(json.dumps({"variants": [{"version": 2}], "match": {"system": "("}}))
        refused = await run("prompt", "set", "writer", "--file", str(file))
        assert (refused.status, len(refused.err.splitlines()), "unclosed group" in refused.err) == (1, 1, True)
        file.write_text(json.dumps({"variants": [{"version": 2}], "enabled": False}))
        whole = (await run("prompt", "set", "writer", "--file", str(file), "--json")).json
        assert (whole["match"], whole["enabled"], whole["retired"][0]["version"]) == ({}, False, 1)
        assert (await run("prompt", "list", "--json")).json == {"prompts": [whole]}
        shown = (await run("prompt", "show", "writer")).out
        assert "disabled; matches every call" in shown
        assert "--- version 1, retired\n{system} Be brief.\n" in shown
        assert (await run("prompt", "delete", "writer", "--json")).json == {"name": "writer", "deleted": True}
        for command in ("show", "delete"):
            missing = await run("prompt", command, "writer")
            assert (missing.status, "no prompt 'writer'" in missing.err) == (1, True)


KNOWN = {
    "match": {"agent": "x", "system": "y"},
    "variants": [{"version": 2, "text": "two", "weight": 5.0}],
    "retired": [{"version": 1, "text": "one"}],
    "enabled": False,
}


def change(text: str | None = None, version: int | None = None, weight: float | None = None, **more: Any) -> Change:
    return Change(text, version, weight, more.get("retire", ()), more.get("match", {}), more.get("enabled"))


@pytest.mark.parametrize(
    ("given", "variants"),
    [
        (change("three"), {2: 5.0, 3: 1.0}),
        (change("one", weight=2.0), {1: 2.0, 2: 5.0}),
        (change(version=1), {1: 1.0, 2: 5.0}),
        (change(version=2, weight=1.5), {2: 1.5}),
        (change("new", version=7, retire=(2,)), {7: 1.0}),
        (change(enabled=True), {2: 5.0}),
    ],
)
def test_options_change_what_they_name(given: Change, variants: dict[int, float]) -> None:
    put = given.applied("p", KNOWN)
    assert {one["version"]: one["weight"] for one in put["variants"]} == variants
    assert put["match"] == KNOWN["match"]
    assert put["enabled"] is (given.enabled is True)


def test_parts_of_a_match_are_kept_replaced_or_taken_out() -> None:
    put = change(match={"agent": "", "system": None, "model": "m", "header": {"a": "b"}}).applied("p", KNOWN)
    assert put["match"] == {"system": "y", "model": "m", "header": {"a": "b"}}


@pytest.mark.parametrize(
    ("given", "known", "said"),
    [
        (change(version=9), KNOWN, "no version 9"),
        (change(retire=(1,)), KNOWN, "no version 1 to retire"),
        (change(retire=(2,)), KNOWN, "no variant"),
        (change(enabled=True), None, "no variant"),
    ],
)
def test_changes_that_cannot_be_made_say_why(given: Change, known: dict[str, Any] | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        given.applied("p", known)


def test_large_weights_are_read_with_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(policy, "WORTH_PROGRESS_BYTES", 8 << 20)
    monkeypatch.setattr(policy, "PIECE_BYTES", 1 << 20)
    file = tmp_path / "model.safetensors"
    file.write_bytes(bytes(8 << 20))
    assert policy._sha256(file) == "2daeb1f36095b44b318410b3f4e8b5d989dcc7bb023d1426c492dab0a3053e74"
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"reading model.safetensors: {done}/8 MiB" for done in (2, 4, 6, 8)]
