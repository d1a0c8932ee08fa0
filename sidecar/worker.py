"""One of several processes that share the agents' port: `python -m sidecar.worker`, started by the main process.

It takes settings and orders from its standard input (`sidecar.channel`), and ends in order on SIGTERM and when the main
process is gone. It ends at once, with what is in flight recorded as aborted, on a second SIGTERM, on SIGUSR1, and when
the main process goes while it is ending.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from sidecar.board import Board
from sidecar.channel import Channel, Message
from sidecar.fleet import looked_after
from sidecar.forward import control_session
from sidecar.listen import claim
from sidecar.metrics import Metrics
from sidecar.serving import Serving, serving
from tracegrad.errors import TracegradError
from tracegrad.settings import Settings

log = logging.getLogger(__name__)


def main() -> None:
    """Serve until told to end."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the main process has them too, and says what to do
    pair = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_run(pair)))


async def _run(pair: socket.socket) -> int:
    channel = await Channel.over(pair)
    hello = await channel.receive()
    if hello is None:
        return 1
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format=f"%(asctime)s level=%(levelname)s logger=%(name)s worker={hello['worker']} %(message)s",
    )
    try:
        await _serve(channel, hello)
    except TracegradError as error:
        channel.send({"failed": str(error)})
        await channel.flush()
        return 1
    return 0


async def _serve(channel: Channel, hello: Message) -> None:
    stop = asyncio.Event()
    loop, hasty = asyncio.get_running_loop(), asyncio.Event()

    def end() -> None:
        (hasty if stop.is_set() else stop).set()

    loop.add_signal_handler(signal.SIGTERM, end)
    loop.add_signal_handler(signal.SIGUSR1, hasty.set)
    settings = Settings.from_json(hello["settings"])
    worker, places = int(hello["worker"]), hello["places"]
    listener = claim(settings.sidecar.host, int(hello["port"]), shared=True)
    board = Board.attach(Path(hello["board"]), worker)
    async with control_session() as control, looked_after(settings, control, board, places, None) as (fleet, routes):
        async with serving(
            settings, listener, fleet, routes, metrics=Metrics(), worker=worker, shutdown_s=float(hello["shutdown_s"])
        ) as running:
            haste = asyncio.create_task(_at_once(running, hasty), name="haste")
            orders = asyncio.create_task(_obey(channel, running, stop, hasty), name="orders")
            channel.send({"ready": True})
            await stop.wait()
        channel.send({"final": _plain(running)})
        for task in (orders, haste):
            task.cancel()
        await asyncio.gather(orders, haste, return_exceptions=True)
        await channel.flush()


async def _at_once(running: Serving, hasty: asyncio.Event) -> None:
    """End when told to, without the rest of the orderly end."""
    await hasty.wait()
    log.warning("worker stops at once: calls in flight are recorded as aborted")
    try:
        await running.abandon()
    finally:
        os._exit(1)


async def _obey(channel: Channel, running: Serving, stop: asyncio.Event, hasty: asyncio.Event) -> None:
    """Carry out orders until the main process is gone."""
    orders: dict[str, Callable[[Message], Awaitable[Any]]] = {
        "metrics": lambda _: _metrics(running),
        "reopen": lambda _: _reopen(running),
        "reload": lambda order: _reload(running, order),
    }
    while (order := await channel.receive()) is not None:
        try:
            answer = {"result": await orders[order["do"]](order)}
        except TracegradError as error:
            answer = {"problem": str(error)}
        channel.send({"id": order["id"], **answer})
    if stop.is_set():
        log.error("main process gone while this one was ending: it ends at once")
        hasty.set()
        return
    log.error("main process gone: this one ends too")
    stop.set()


async def _metrics(running: Serving) -> list[Message]:
    return _plain(running)


async def _reopen(running: Serving) -> None:
    running.reopen_log()


async def _reload(running: Serving, order: Message) -> None:
    await running.reload(Settings.from_json(order["settings"]), order["places"])


def _plain(running: Serving) -> list[Message]:
    return [family.to_json() for family in running.families()]


if __name__ == "__main__":
    main()
