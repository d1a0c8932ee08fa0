"""Is the set-up right, and is what arrives fit to train on? Each finding says what to do.

The checks only look: they start nothing and change nothing.
"""

import asyncio
import ssl
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import aiohttp
from clickhouse_connect.driver.client import Client

from tracegrad import clickhouse
from tracegrad.doctor_finding import Finding
from tracegrad.doctor_spool import examine_spool
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings


async def examine(settings: Settings) -> list[Finding]:
    """All checks, in the order in which a call travels."""
    tls = settings.otlp_access.tls if settings.otlp.startswith("https:") else None
    findings = [await _answers("collector (OTLP)", settings.otlp + "/healthz", "tracegrad collector", tls)]
    findings.append(await _answers("sidecar", settings.sidecar_admin_url + "/healthz", "tracegrad sidecar"))
    findings += await examine_spool(settings)
    policies = await _policies(settings)
    findings += _engines(policies)
    findings += _continuations(policies)
    try:
        findings += await asyncio.to_thread(_stored, settings, policies)
    except TracegradError as error:
        embedded = settings.collector.server is None
        advice = "start it: `tracegrad collector`" if embedded else "start the server, or correct store of [collector]"
        findings.append(Finding("store (SQL)", "fail", str(error), advice))
    return findings


def _stored(settings: Settings, policies: list[dict[str, Any]]) -> list[Finding]:
    url = settings.clickhouse
    client = clickhouse.connect(url)
    try:
        with clickhouse.errors_in_one_line(url):
            answers = Finding("store (SQL)", "ok", f"answers at {clickhouse.shown(url)}")
            return [answers, *_calls(client, settings.sidecar_url), *_rollouts(client), *_staleness(client, policies)]
    finally:
        client.close()


async def _answers(check: str, url: str, command: str, tls: ssl.SSLContext | None = None) -> Finding:
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(url, ssl=tls or True) as response,
        ):
            if response.status == 200:
                return Finding(check, "ok", f"answers at {url}")
            return Finding(check, "fail", f"{url} answers {response.status}", f"read the log of `{command}`")
    except (aiohttp.ClientError, TimeoutError) as error:
        return Finding(check, "fail", f"{url}: {error or type(error).__name__}", f"start it: `{command}`")


async def _policies(settings: Settings) -> list[dict[str, Any]]:
    """The sidecar's view of its policies; empty when it does not answer, which another check reports."""
    secret = settings.sidecar.admin_secret
    headers = {"authorization": f"Bearer {secret.read()}"} if secret is not None else {}
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(settings.sidecar_admin_url + "/policies", headers=headers) as response,
        ):
            policies: list[dict[str, Any]] = (await response.json())["policies"]
            return policies
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
        return []


def _engines(policies: list[dict[str, Any]]) -> Iterator[Finding]:
    for policy in policies:
        for replica in policy["replicas"]:
            check = f"engine {replica['url']}"
            if not replica["healthy"]:
                advice = "start vLLM there as `tracegrad up --model` does, or correct `upstream` in [[model]]"
                yield Finding(check, "fail", replica.get("problem") or "does not answer", advice)
            elif replica["version"] is None:
                yield Finding(check, "warn", "its weights are changing", "ask again when the publication has ended")
            else:
                yield Finding(check, "ok", f"serves {policy['name']}@{replica['version']}")


def _continuations(policies: list[dict[str, Any]]) -> Iterator[Finding]:
    """Whether calls that go on where earlier ones ended are prompted with exact tokens."""
    for policy in policies:
        told = policy.get("continuation") or {}
        check = f"exact continuation of {policy['name']}"
        if told.get("state") in {"tokens", "off"}:
            yield Finding(check, "ok", f"{told['state']}: {told['why']}")
        elif told:
            other = "off" if told.get("setting") == "tokens" else "tokens or off"
            advice = f"start an engine that it can examine, or set continuation in its [[model]] entry ({other})"
            yield Finding(check, "warn", f"{told['state']}: {told['why']}", advice)


def _calls(client: Client, sidecar_url: str) -> Iterator[Finding]:
    calls, exact, with_parent = client.query(_sql("calls")).first_row
    if not calls:
        yield Finding(
            "model calls",
            "warn",
            "none in the last day",
            f"point the agent at the sidecar: OPENAI_BASE_URL={sidecar_url}/v1",
        )
        return
    yield Finding("model calls", "ok", f"{calls} in the last day")
    if with_parent < calls:
        yield Finding(
            "traceparent",
            "warn",
            f"{calls - with_parent} of {calls} calls came without one, so their place in the agent's run is unknown",
            "run the agent under `opentelemetry-instrument` with tracegrad-otel installed in its environment",
        )
    if exact == calls:
        yield Finding("exactness", "ok", "every call has exact token ids and log-probs")
    for reason, count in client.query(_sql("reasons")).result_rows:
        yield Finding(
            "exactness",
            "warn",
            f"{count} of {calls} calls will not train: {reason}",
            "see the policy's [[model]] entry" if reason == "passthrough" else "query llm_calls by untrainable_reason",
        )


def _rollouts(client: Client) -> Iterator[Finding]:
    stuck, unrewarded = client.query(_sql("rollouts")).first_row
    if stuck:
        yield Finding(
            "rollouts", "warn", f"{stuck} have no end after an hour", "their launcher was killed: run them again"
        )
    if unrewarded:
        yield Finding("rewards", "warn", f"{unrewarded} finished rollouts have none", "score them: `tracegrad reward`")


def _staleness(client: Client, policies: list[dict[str, Any]]) -> Iterator[Finding]:
    for policy in policies:
        newest = client.query(_sql("newest_version"), parameters={"name": policy["name"]}).first_row[0]
        for replica in policy["replicas"]:
            served = replica["version"]
            if served is not None and served < newest:
                yield Finding(
                    f"engine {replica['url']}",
                    "warn",
                    f"serves {policy['name']}@{served}, but version {newest} was published",
                    "the engine was restarted: `tracegrad train` publishes the newest weights when it starts",
                )


def _sql(name: str) -> str:
    return files("tracegrad").joinpath(f"sql/doctor_{name}.sql").read_text()
