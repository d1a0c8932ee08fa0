"""A worker as the main process sees it: started, spoken to, waited for."""

import asyncio
import contextlib
import itertools
import signal
import socket
import sys
from asyncio.subprocess import Process
from typing import Any

from sidecar.channel import Channel, Message
from sidecar.exposition import Family
from tracegrad.errors import TracegradError

ANSWER_S, COUNTS_S = 10.0, 2.0


class WorkerHandle:
    """One process. `families`: what it counted, as far as it has told."""

    def __init__(self, number: int, process: Process, channel: Channel) -> None:
        self.number = number
        self.families: list[Family] = []
        self.ready = False
        self._process = process
        self._channel = channel
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._failure = ""
        self._reading = asyncio.create_task(self._read(), name=f"worker {number}")

    @classmethod
    async def start(cls, number: int, hello: Message) -> "WorkerHandle":
        """Start the process and tell it what to do."""
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "sidecar.worker", stdin=theirs.fileno()
            )
        channel = await Channel.over(ours)
        channel.send({**hello, "worker": number})
        return cls(number, process, channel)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    async def started(self) -> None:
        """Wait until it serves. Raises TracegradError where it ends before."""
        await asyncio.shield(self._started)

    async def ended(self) -> int:
        """Wait until it has ended and all that it said is known; its exit status, negative for a signal."""
        status = await self._process.wait()
        await self._reading
        return status

    async def ask(self, do: str, *, limit_s: float = ANSWER_S, **more: Any) -> Any:
        """Have it do something; its result. Raises TracegradError where it cannot, or has ended."""
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        if self._reading.done():
            answer.set_result({"problem": "it has ended"})
        self._channel.send({"id": number, "do": do, **more})
        try:
            received = await asyncio.wait_for(answer, limit_s)
        except TimeoutError:
            received = {"problem": f"it does not answer within {limit_s:.0f} s"}
        finally:
            del self._answers[number]
        if "problem" in received:
            raise TracegradError(f"worker {self.number}: {received['problem']}")
        return received["result"]

    async def refresh(self) -> None:
        """Ask for what it has counted. One that ends or hangs keeps what it said last."""
        with contextlib.suppress(TracegradError):
            self.families = [Family.from_json(one) for one in await self.ask("metrics", limit_s=COUNTS_S)]

    def stop(self) -> None:
        """Have it end in order."""
        self._signal(signal.SIGTERM)

    def abandon(self) -> None:
        """Have it record what is in flight, and end."""
        self._signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _read(self) -> None:
        while (message := await self._channel.receive()) is not None:
            if "ready" in message:
                self.ready = True
                self._started.set_result(None)
            elif "failed" in message:
                self._failure = message["failed"]
            elif "final" in message:
                self.families = [Family.from_json(one) for one in message["final"]]
            elif (answer := self._answers.get(message["id"])) is not None and not answer.done():
                answer.set_result(message)
        self.ready = False
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result({"problem": "it has ended"})
        if not self._started.done():
            said = self._failure or "it ended before it served: see the log"
            self._started.set_exception(TracegradError(f"worker {self.number}: {said}"))
            self._started.exception()  # whether or not anybody waits
        await self._channel.flush()
