"""Messages between the main process and a worker: JSON objects, one a line, over the socket pair that is the worker's
standard input. So nothing secret is in arguments, variables or files, and each side knows at once when the other ends.
"""

import asyncio
import socket
from typing import Any

import orjson

MAX_LINE_BYTES = 64 << 20

Message = dict[str, Any]


class Channel:
    """One end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, pair: socket.socket) -> "Channel":
        """An end over a connected socket, which it then owns."""
        pair.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=pair, limit=MAX_LINE_BYTES))

    def send(self, message: Message) -> None:
        """Send without waiting. To an end that is closed, in vain: `receive` tells."""
        if not self._writer.is_closing():
            self._writer.write(orjson.dumps(message) + b"\n")

    async def receive(self) -> Message | None:
        """The next message; None when the other side has ended."""
        try:
            line = await self._reader.readuntil(b"\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        received: Message = orjson.loads(line)
        return received

    async def flush(self) -> None:
        """Wait until what was sent is out, or the other side is gone."""
        try:
            await self._writer.drain()
            self._writer.close()
            await self._writer.wait_closed()
        except ConnectionError:
            return
