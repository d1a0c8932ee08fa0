"""The stored responses as the event loop sees them: one thread reads and writes them, in the order of asking.

Invariant: who waits for the disk or for another process's lock is the call that needs the store, and no other.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sidecar.responses.store import ResponseStore, Stored

_Result = TypeVar("_Result")


class StoreThread:
    """`ResponseStore` for coroutines; each method is the one of that name."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="responses")

    async def put(self, tenant: str, stored: Stored) -> None:
        """Keep a response; later reads of any process find it."""
        await self._run(lambda: self._store.put(tenant, stored))

    async def get(self, tenant: str, response_id: str) -> Stored | None:
        """One response; None where the tenant has none with this id. Raises StoreError."""
        return await self._run(lambda: self._store.get(tenant, response_id))

    async def chain(self, tenant: str, response_id: str) -> list[Stored] | None:
        """A response after all that it continues; None where any of them is not there. Raises StoreError."""
        return await self._run(lambda: self._store.chain(tenant, response_id))

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Forget a response; whether there was one. Raises StoreError."""
        return await self._run(lambda: self._store.delete(tenant, response_id))

    async def close(self) -> None:
        """Close the file, after all that was asked before."""
        await self._run(self._store.close)
        self._thread.shutdown()

    async def _run(self, use: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, use)
