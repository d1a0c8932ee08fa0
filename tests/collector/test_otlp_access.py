"""A collector with a token and TLS: who gets in, what our own senders need for it, and that nothing leaks."""

import asyncio
import dataclasses
import secrets
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from certificates import Authority, authority
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from otlp_receivers import EXPORT, PROTOBUF, StoreDouble, served, spans

import reward
from collector.tls import load_tls
from sidecar.delivery import Delivery
from tracegrad import otlp
from tracegrad.errors import SettingsError, UnreachableError
from tracegrad.otlp_access import OtlpAccess
from tracegrad.rollout import environment, preflight
from tracegrad.settings import CollectorSettings, Settings, load

TOKEN = "a-token-that-nobody-else-has"


@dataclass(frozen=True)
class Guarded:
    """A running collector, and the settings that both it and its senders have."""

    collector: Any
    settings: Settings
    file: Path


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, trusted: Authority, start: Any) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("guarded")
    cert, key = trusted.certify("collector")
    (home / "token").write_text(f"{TOKEN}\n")
    file = home / "tracegrad.toml"
    text = f"""
otlp_ca = "{trusted.file}"
[collector]
token_file = "{home / "token"}"
tls_cert = "{cert}"
tls_key = "{key}"
"""
    file.write_text(text)
    with start(home / "store", "--config", str(file)) as started:
        port = int(started.otlp.rpartition(":")[2])
        file.write_text(text + f"otlp_http_port = {port}\n")
        yield Guarded(started, load(file, environ={}), file)
        log = started.log.read_text()
    assert TOKEN not in log
    assert "Traceback" not in log


def count_of(guarded: Guarded, trace_id: str) -> int:
    # Not by the collector's own `sql`, which reads `/metrics` first: that asks for the token here.
    query = f"SELECT count() FROM otel.otel_traces WHERE TraceId = '{trace_id}'"
    tls = guarded.settings.otlp_access.tls
    with urllib.request.urlopen(guarded.collector.clickhouse, query.encode(), timeout=30, context=tls) as reply:
        return int(reply.read())


def until_stored(guarded: Guarded, trace_id: str) -> None:
    for _ in range(600):
        if count_of(guarded, trace_id):
            return
        time.sleep(0.05)
    pytest.fail("the span never came")


def test_the_address_of_a_collector_with_a_certificate_is_https(guarded: Guarded) -> None:
    assert guarded.settings.otlp == guarded.collector.otlp
    assert guarded.settings.otlp.startswith("https://127.0.0.1:")


async def test_our_sender_shows_the_token_and_trusts_the_authority(guarded: Guarded) -> None:
    context = otlp.SpanContext.new()
    async with otlp.OtlpSender(guarded.settings.otlp, "test", access=guarded.settings.otlp_access) as sender:
        sender.put(otlp.span("work", context, start_ns=1, end_ns=2, values={}))
        assert await sender.flush(30)
    await asyncio.to_thread(until_stored, guarded, context.trace_id.hex())


async def test_the_sidecar_delivers_to_it(guarded: Guarded, tmp_path: Path) -> None:
    context = otlp.SpanContext.new()
    access = guarded.settings.otlp_access
    async with Delivery(guarded.settings.otlp, "test", tmp_path, spool_bytes=1 << 20, access=access) as delivery:
        assert delivery.put(otlp.span("work", context, start_ns=1, end_ns=2, values={}).SerializeToString())
        assert await delivery.flush(30)
    assert delivery.counters.sent == 1
    await asyncio.to_thread(until_stored, guarded, context.trace_id.hex())


@pytest.mark.parametrize("missing", ["token", "ca"])
async def test_our_sender_without_them_keeps_its_records(guarded: Guarded, missing: str) -> None:
    access = dataclasses.replace(guarded.settings.otlp_access, **{missing: None})
    context = otlp.SpanContext.new()
    sender = otlp.OtlpSender(guarded.settings.otlp, "test", access=access, close_timeout_s=0.1)
    async with sender:
        sender.put(otlp.span("work", context, start_ns=1, end_ns=2, values={}))
        assert not await sender.flush(1.0)
    assert (sender.counters.sent, sender.counters.dropped_refused) == (0, 0)
    assert count_of(guarded, context.trace_id.hex()) == 0


def test_rewards_are_taken(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(guarded.file.parent)
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    reward.emit("style", 0.5, trace_id=trace, span_id=span)
    with pytest.raises(UnreachableError, match="status 401"):
        monkeypatch.setenv("TRACEGRAD_OTLP_TOKEN", "wrong")
        reward.emit("style", 0.5, trace_id=trace, span_id=span)
    elsewhere = guarded.settings.otlp.replace("127.0.0.1", "localhost")
    with pytest.raises(UnreachableError):  # another address, even of the same collector, is shown neither
        reward.emit("style", 0.5, trace_id=trace, span_id=span, endpoint=elsewhere)


async def test_the_preflight_of_rollouts_says_what_is_wrong(guarded: Guarded) -> None:
    asked = guarded.settings
    async with aiohttp.ClientSession() as session:
        await preflight._check_collector(session, asked.otlp, asked.otlp_access)
        with pytest.raises(UnreachableError, match="set otlp_token"):
            await preflight._check_collector(session, asked.otlp, OtlpAccess(ca=asked.otlp_ca))
        with pytest.raises(UnreachableError, match="certificate"):
            await preflight._check_collector(session, asked.otlp, OtlpAccess())


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_agents_get_it_in_their_environment(guarded: Guarded, transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # which requests, below the exporter, would rather trust
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.shared(guarded.settings, {}).items():
        if name.startswith("OTEL_") and value is not None:
            monkeypatch.setenv(name, value)
    if transport == "grpc":
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"https://{guarded.collector.grpc}")
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(HttpSpans() if transport == "http" else GrpcSpans()))
    with provider.get_tracer("agent").start_as_current_span("work") as span:
        trace = f"{span.get_span_context().trace_id:032x}"
    provider.shutdown()
    until_stored(guarded, trace)


@pytest.mark.parametrize("name", environment.ENDPOINTS)
def test_agents_that_send_elsewhere_do_not_get_our_token(guarded: Guarded, name: str) -> None:
    changes = environment.shared(guarded.settings, {name: "https://vendor.example"})
    assert TOKEN not in str(changes)
    assert TOKEN in str(environment.shared(guarded.settings, {}))
    assert (
        environment.shared(guarded.settings, {"OTEL_EXPORTER_OTLP_HEADERS": "x=y"}).get("OTEL_EXPORTER_OTLP_HEADERS")
        is None
    )


def test_doors_that_stay_shut(guarded: Guarded, trusted: Authority) -> None:
    body = spans().SerializeToString()
    tls = ssl.create_default_context(cafile=trusted.file)
    for token, status in (("wrong", 401), (TOKEN, 200)):
        headers = {"content-type": PROTOBUF, "authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"{guarded.collector.otlp}/v1/traces", body, headers)
        try:
            with urllib.request.urlopen(request, context=tls) as reply:
                assert reply.status == status
        except urllib.error.HTTPError as error:
            assert error.code == status
    with pytest.raises(OSError):
        urllib.request.urlopen(guarded.collector.otlp.replace("https", "http") + "/healthz", timeout=20)
    with urllib.request.urlopen(f"{guarded.collector.otlp}/healthz", context=tls) as reply:
        assert reply.status == 200
    roots = grpc.ssl_channel_credentials(trusted.file.read_bytes())
    with grpc.secure_channel(guarded.collector.grpc, roots) as channel:
        export = channel.unary_unary(EXPORT["traces"])
        assert export(body, metadata=(("authorization", f"Bearer {TOKEN}"),)) == b""
        with pytest.raises(grpc.RpcError) as refused:
            export(body)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    with grpc.insecure_channel(guarded.collector.grpc) as channel, pytest.raises(grpc.RpcError) as plain:
        channel.unary_unary(EXPORT["traces"])(body, timeout=20)
    assert plain.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_senders_may_need_a_certificate(trusted: Authority, tmp_path: Path) -> None:
    cert, key = trusted.certify("server")
    own_cert, own_key = trusted.certify("sender")
    stranger = authority(tmp_path, "stranger").certify("imposter")
    tls = load_tls(CollectorSettings(tls_cert=cert, tls_key=key, tls_client_ca=trusted.file))
    store = StoreDouble()
    async with served(store, tls=tls) as server:
        with_it = OtlpAccess(ca=trusted.file, cert=own_cert, key=own_key)
        async with otlp.OtlpSender(server.http, "test", access=with_it) as sender:
            sender.put(otlp.span("work", otlp.SpanContext.new(), start_ns=1, end_ns=2, values={}))
            assert await sender.flush(20)
        for shown in (OtlpAccess(ca=trusted.file), OtlpAccess(ca=trusted.file, cert=stranger[0], key=stranger[1])):
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.ClientError):
                    async with session.post(f"{server.http}/v1/traces", data=b"", ssl=shown.tls):
                        pass
        roots = trusted.file.read_bytes()
        answers = []
        for chain in ((own_key, own_cert), (stranger[1], stranger[0]), None):
            files = (None, None) if chain is None else tuple(file.read_bytes() for file in chain)
            credentials = grpc.ssl_channel_credentials(roots, *files)
            async with grpc.aio.secure_channel(server.grpc, credentials) as channel:
                try:
                    answers.append(await channel.unary_unary(EXPORT["traces"])(b"", timeout=20))
                except grpc.aio.AioRpcError as error:
                    answers.append(error.code())
        assert answers == [b"", grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]
    assert len(store.bodies) == 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"collector": {"tls_cert": "a.pem"}}, "tls_cert and tls_key belong together"),
        ({"collector": {"tls_client_ca": "a.pem"}}, "tls_client_ca needs tls_cert"),
        ({"collector": {"token": "a", "token_env": "B"}}, "more than once"),
        ({"otlp_token": "a", "otlp_token_file": "b"}, "more than once"),
        ({"otlp_cert": "a"}, "otlp_cert and otlp_key belong together"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings.model_validate(values)


def test_our_token_comes_from_where_it_was_set(tmp_path: Path) -> None:
    assert Settings().otlp_access.headers() == {}
    shared = Settings.model_validate({"collector": {"token": "theirs"}})
    assert shared.otlp_access.headers() == {"authorization": "Bearer theirs"}
    own = Settings.model_validate({"collector": {"token": "theirs"}, "otlp_token": "ours"})
    assert own.otlp_access.headers() == {"authorization": "Bearer ours"}
    assert "ours" not in repr(own)
    empty = tmp_path / "empty.toml"
    empty.write_text("")
    by_variable = load(empty, environ={"TRACEGRAD_OTLP_TOKEN": "x y", "TRACEGRAD_OTLP_CA": "ca.pem"}).otlp_access
    assert by_variable.environment() == {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x%20y",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": str(Path("ca.pem").absolute()),
    }


def test_files_that_are_no_certificates_are_named(tmp_path: Path, trusted: Authority) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("no certificate")
    cert, key = trusted.certify("right")
    other_key = trusted.certify("other")[1]
    for settings in (
        CollectorSettings(tls_cert=junk, tls_key=junk),
        CollectorSettings(tls_cert=cert, tls_key=other_key),
        CollectorSettings(tls_cert=tmp_path / "absent", tls_key=key),
        CollectorSettings(tls_cert=cert, tls_key=key, tls_client_ca=junk),
    ):
        with pytest.raises(SettingsError, match="PEM form"):
            load_tls(settings)
    with pytest.raises(SettingsError, match=f"otlp_ca {junk} holds no certificates"):
        _ = OtlpAccess(ca=junk).tls
    with pytest.raises(SettingsError, match="no certificate with its key"):
        _ = OtlpAccess(cert=cert, key=other_key).tls


def test_a_collector_without_its_token_does_not_start(tmp_path: Path, command_line: Any) -> None:
    file = tmp_path / "tracegrad.toml"
    file.write_text('[collector]\ntoken_env = "NOT_SET_ANYWHERE"\n')
    command = command_line(tmp_path / "store", "--config", str(file))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "NOT_SET_ANYWHERE is not set" in done.stderr
    assert not (tmp_path / "store").exists()
