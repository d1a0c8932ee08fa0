"""Posts batches of encoded records to one collector until it has answered for every one of them.

Invariants: `deliver` returns only when each record was acknowledged or refused, and counts which; what the collector
cannot take at the moment is tried again for ever. Only an answer that blames the records themselves refuses any, and
then the batch is split until none but the blamed are lost. While the collector is away, one request at a time asks
whether it is back, however many are waiting.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource

import tracegrad
from tracegrad.http_client import HttpClient
from tracegrad.otlp_access import OtlpAccess
from tracegrad.otlp_request import Record, export_request, rejection, retry_after_s

log = logging.getLogger(__name__)

BLAMING = {400, 413}
"""Answers that are about what was sent: one record in a batch, or the batch's size."""
BROKEN = 500
"""May be about a record too: where it keeps coming, batches are split."""
BROKEN_TIMES, BROKEN_ALONE_TIMES = 3, 20
"""After so many, one record that is still answered so is refused: when others were taken meanwhile, and anyhow (that is
after more than a minute), since nothing must block for ever what comes after it."""
FIRST_RETRY_S, LONGEST_RETRY_S = 0.1, 5.0
LONGEST_RETRY_AFTER_S = 300.0
ANSWER_TIMEOUT_S = 60.0
KEEPALIVE_S = 15.0
HEADERS = {"content-type": "application/x-protobuf"}


@dataclass
class Delivered:
    """What became of the records that one client was given."""

    sent: int = 0
    retries: int = 0
    """Requests that had to be sent again."""
    dropped_refused: int = 0


@dataclass(frozen=True)
class _Answer:
    """`status` None: none came, and `text` says why."""

    status: int | None
    text: str = ""
    body: bytes = b""
    retry_after_s: float = 0.0

    @property
    def is_final(self) -> bool:
        """Whether the collector is there and did its work."""
        return self.status == 200 or self.status in BLAMING


class OtlpClient:
    """An async context manager; leaving it ends the connections. `counts` is kept up to date.

    Raises SettingsError where a token or certificate of `access` is not there.
    """

    def __init__(self, endpoint: str, service: str, counts: Delivered, access: OtlpAccess | None = None) -> None:
        self.away = False
        """The collector took nothing when it was asked last."""
        self._endpoint = endpoint.rstrip("/")
        self._counts = counts
        access = access or OtlpAccess()
        self._headers = HEADERS | access.headers()
        tls = access.tls if self._endpoint.startswith("https:") else None
        name = KeyValue(key="service.name", value=AnyValue(string_value=service))
        self._resource = Resource(attributes=[name]).SerializeToString()
        self._scope = InstrumentationScope(name=service, version=tracegrad.__version__).SerializeToString()
        self._probe = asyncio.Lock()
        self._wait_s = FIRST_RETRY_S
        self._requests_taken = 0
        self._http = HttpClient(KEEPALIVE_S) if tls is None else HttpClient(KEEPALIVE_S, lambda: tls)

    async def __aenter__(self) -> "OtlpClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        self._http.close()

    async def deliver(self, path: str, records: Sequence[Record]) -> None:
        """Send records of one kind until none of them is open."""
        await self._deliver(path, records, self._requests_taken)

    async def _deliver(self, path: str, records: Sequence[Record], taken_before: int) -> None:
        body = export_request(self._resource, self._scope, records)
        broken = 0
        while True:
            answer = await self._ask(path, body)
            if answer.status == 200:
                self._count_delivered(len(records), *rejection(path, answer.body))
                return
            broken += answer.status == BROKEN
            others_taken = self._requests_taken > taken_before
            patience = BROKEN_TIMES if others_taken or len(records) > 1 else BROKEN_ALONE_TIMES
            if answer.status in BLAMING or broken >= patience:
                break
            self._counts.retries += 1
        if len(records) == 1:
            self._counts.dropped_refused += 1
            log.error("collector refused an otlp record status=%s body=%.200s", answer.status, answer.text)
            return
        middle = len(records) // 2
        await asyncio.gather(
            self._deliver(path, records[:middle], taken_before), self._deliver(path, records[middle:], taken_before)
        )

    def _count_delivered(self, count: int, rejected: int, message: str) -> None:
        rejected = min(rejected, count)
        self._requests_taken += 1
        self._counts.sent += count - rejected
        self._counts.dropped_refused += rejected
        if rejected:
            log.error("collector rejected otlp records count=%d of=%d message=%.200s", rejected, count, message)

    async def _ask(self, path: str, body: bytes) -> _Answer:
        """One answer. While the collector is away: after a pause, and in turn."""
        while self.away:
            async with self._probe:
                if not self.away:
                    break
                await asyncio.sleep(self._wait_s)
                answer = await self._post(path, body)
                self._note(answer, longer=True)
                return answer
        answer = await self._post(path, body)
        self._note(answer, longer=False)
        return answer

    def _note(self, answer: _Answer, *, longer: bool) -> None:
        if answer.is_final:
            if self.away:
                log.info("collector takes records again endpoint=%s", self._endpoint)
            self.away, self._wait_s = False, FIRST_RETRY_S
            return
        said = answer.text or answer.status
        if not self.away:
            log.warning("collector at %s does not take records yet, retrying: %s", self._endpoint, said)
        self.away = True
        backoff = min(self._wait_s * 2, LONGEST_RETRY_S) if longer else self._wait_s
        self._wait_s = max(backoff, min(answer.retry_after_s, LONGEST_RETRY_AFTER_S))

    async def _post(self, path: str, body: bytes) -> _Answer:
        try:
            async with (
                asyncio.timeout(ANSWER_TIMEOUT_S),
                self._http.post(self._endpoint, path, self._headers, body) as answer,
            ):
                content = await answer.read()
        except OSError as error:  # a TimeoutError too
            return _Answer(None, f"{type(error).__name__}: {error}")
        if answer.status == 200:
            return _Answer(200, body=content)
        text = f"status {answer.status}: {content[:1000].decode(errors='replace')}"
        return _Answer(answer.status, text, retry_after_s=retry_after_s(answer.headers.get("retry-after")))
