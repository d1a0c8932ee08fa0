"""What is sent wrongly: its client gets an answer in its API's words, the log a line at most, and never a traceback."""

import asyncio
import gzip
import logging
import zlib
from typing import Any

import pytest
from fake_vllm import FakeVllm
from sidecar_harness import Harness
from sidecar_process import until

BODY = b'{"model": "policy", "messages": [], "max_tokens": 5}'


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def raw(harness: Harness, sent: bytes) -> bytes:
    """What comes back for some bytes, until the sidecar closes."""
    reader, writer = await asyncio.open_connection(*harness.url.removeprefix("http://").split(":"))
    writer.write(sent)
    received = await reader.read()
    writer.close()
    return received


async def encoded(harness: Harness, body: bytes, encoding: str, path: str = "/v1/chat/completions") -> Any:
    return await harness.session.post(harness.url + path, data=body, headers={"content-encoding": encoding})


@pytest.mark.parametrize(
    ("body", "encoding", "refusal"),
    [
        (BODY, "gzip", (400, "invalid_body")),
        (gzip.compress(BODY)[:-9], "gzip", (400, "invalid_body")),
        (BODY, "deflate", (400, "invalid_body")),
        (BODY, "br", (415, "unsupported_content_encoding")),
        (BODY, "gzip, gzip", (415, "unsupported_content_encoding")),
        (gzip.compress(b"[]"), "gzip", (400, "invalid_json")),
    ],
)
async def test_a_body_that_is_not_what_it_says_is_refused(
    harness: Harness, caplog: pytest.LogCaptureFixture, body: bytes, encoding: str, refusal: tuple[int, str]
) -> None:
    status, code = refusal
    answer = await encoded(harness, body, encoding)
    assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)
    span = await harness.receiver.one()
    assert (span.attributes["error.type"], span.attributes["http.response.status_code"]) == (code, status)
    other = await encoded(harness, body, encoding, "/v1/messages")
    assert (other.status, (await other.json())["type"]) == (status, "error")
    assert tracebacks(caplog) == []
    page = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    assert f'calls_total{{status="{status}"}} 2' in page


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(BODY), "gzip"),
        (gzip.compress(BODY), "X-GZIP"),
        (gzip.compress(BODY[:20]) + gzip.compress(BODY[20:]), "gzip"),
        (zlib.compress(BODY), "deflate"),
        (zlib.compress(BODY, wbits=-15), "deflate"),
        (BODY, "identity"),
    ],
)
async def test_a_compressed_body_is_read(harness: Harness, fake: FakeVllm, body: bytes, encoding: str) -> None:
    assert (await encoded(harness, body, encoding)).status == 200
    assert fake.requests[0]["max_tokens"] == 5


async def test_a_small_body_that_becomes_large_is_a_413(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for(
        {"name": "policy", "upstream": fake.url, "policy": "policy"}, limits={"max_body_bytes": 1000}
    )
    answer = await encoded(harness, gzip.compress(b" " * (64 << 20)), "gzip")
    assert (answer.status, (await answer.json())["error"]["code"]) == (413, "request_too_large")


async def test_what_is_passed_on_stays_compressed(harness_for: Any, fake: FakeVllm) -> None:
    harness = await harness_for({"name": "*", "upstream": fake.url})
    told = await (await encoded(harness, gzip.compress(b"a file"), "gzip", "/echo/files")).json()
    assert (told["headers"]["content-encoding"], told["body"]) == ("gzip", "a file")


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer sk-key\x00\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: " + b"sk-key" * 12_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
async def test_what_is_no_http_is_a_400_and_a_line(
    harness: Harness, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(3):
        assert (await raw(harness, sent)).startswith(b"HTTP/1.0 400 ")
    assert tracebacks(caplog) == []
    (line,) = [record.getMessage() for record in caplog.records if record.name == "sidecar.http_server"]
    assert line.startswith("what came is no HTTP from=127.0.0.1 problem=")
    assert "sk-key" not in line
    page = await (await harness.session.get(f"{harness.admin}/metrics")).text()
    assert 'refusals_total{code="bad_http"} 3' in page


async def test_headers_of_64_kib_are_taken(harness: Harness) -> None:
    """The fake engine takes less, so these calls must be answered here."""
    long = "x" * 60_000
    assert (await harness.chat({"model": "unknown"}, x_long=long)).status == 404
    assert (await harness.session.post(f"{harness.url}/v1/messages?x={long}", json={})).status == 400


@pytest.mark.parametrize("policy", ["policy", None])
async def test_a_client_that_closes_with_the_last_byte_is_no_error(
    harness_for: Any, fake: FakeVllm, caplog: pytest.LogCaptureFixture, policy: str | None
) -> None:
    harness = await harness_for({"name": "policy", "upstream": fake.url} | ({"policy": policy} if policy else {}))
    body = b'{"model": "policy", "messages": [], "stream": true}'
    for _ in range(20):
        reader, writer = await asyncio.open_connection(*harness.url.removeprefix("http://").split(":"))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"data: [DONE]\n\n")
        writer.transport.abort()
    await until(lambda: len(harness.receiver.spans) == 20)
    assert [span.attributes.get("error.type") for span in harness.receiver.spans] == [None] * 20
    assert tracebacks(caplog) == []
