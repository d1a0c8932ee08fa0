"""A running sidecar as its operators see it: one process (`Alone`), or a main process with its workers (`Main`).

A reload takes up all of a new configuration or nothing of it, and says which changes need a restart.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from sidecar.admin import Admin
from sidecar.exposition import Family
from sidecar.fleet import Fleet
from sidecar.metrics import Metrics
from sidecar.places import placed
from sidecar.reload import taken_up
from sidecar.routes import Routes, policy_engines
from sidecar.serving import Serving
from sidecar.shared_board import SharedBoard
from sidecar.supervisor import Supervisor, check
from sidecar.tenants import admin_keys
from tracegrad.errors import SettingsError
from tracegrad.loopback import is_loopback
from tracegrad.settings import Settings

log = logging.getLogger(__name__)

Again = Callable[[], Settings]
"""Reads the configuration once more. Raises SettingsError."""


class Operation(ABC):
    """What both have in common. `port` is the agents'."""

    def __init__(self, settings: Settings, again: Again | None, ports: tuple[int, int], admin: Admin) -> None:
        self.port, self.admin_port = ports
        self.settings = settings
        self._again = again
        self._admin = admin
        self._one_at_a_time = asyncio.Lock()
        admin.operation, admin.keys = self, admin_keys(settings)

    @property
    @abstractmethod
    def problems(self) -> list[str]:
        """What is wrong with processes, beside engines."""

    @abstractmethod
    async def families(self) -> list[Family]:
        """What is counted, of all processes."""

    async def reload(self) -> list[str]:
        """Take up the configuration as it is now; the names of changed settings that need a restart.

        Log files are opened anew even where the configuration is refused: that is what log rotation asks for.
        Raises TracegradError, and the old configuration stays.
        """
        async with self._one_at_a_time:
            await self._reopen_logs()
            if self._again is None:
                raise SettingsError("this sidecar was not started from a configuration that it could read again")
            settings, waiting = taken_up(self.settings, await asyncio.to_thread(self._again))
            keys, before = admin_keys(settings), self.settings
            self._admin.use(await self._take_up(settings))
            self.settings, self._admin.keys = settings, keys
        log.info("configuration reloaded")
        warn_of_open_doors(before, settings)
        if waiting:
            log.warning("changed settings that need a restart: %s", ", ".join(waiting))
        warn_of_risks(settings)
        return waiting

    @abstractmethod
    async def abandon(self) -> None:
        """Record what is in flight as aborted: the process ends next."""

    @abstractmethod
    async def _reopen_logs(self) -> None: ...

    @abstractmethod
    async def _take_up(self, settings: Settings) -> Routes: ...


class Alone(Operation):
    """One process does everything."""

    def __init__(
        self, settings: Settings, again: Again | None, ports: tuple[int, int], admin: Admin, *, serving: Serving
    ) -> None:
        super().__init__(settings, again, ports, admin)
        self._serving = serving

    @property
    def problems(self) -> list[str]:
        """None: while this can be asked, the process serves."""
        return []

    async def families(self) -> list[Family]:
        """What it counts."""
        return self._serving.families()

    async def abandon(self) -> None:
        """In this process."""
        await self._serving.abandon()

    async def _reopen_logs(self) -> None:
        self._serving.reopen_log()

    async def _take_up(self, settings: Settings) -> Routes:
        await self._serving.reload(settings)
        return self._serving.routes


class Main(Operation):
    """The process that looks after the workers."""

    def __init__(
        self,
        settings: Settings,
        again: Again | None,
        ports: tuple[int, int],
        admin: Admin,
        *,
        supervisor: Supervisor,
        fleet: Fleet,
        routes: Routes,
        board: SharedBoard,
        metrics: Metrics,
    ) -> None:
        super().__init__(settings, again, ports, admin)
        self._supervisor = supervisor
        self._fleet = fleet
        self._routes = routes
        self._board = board
        self._metrics = metrics

    @property
    def problems(self) -> list[str]:
        """Workers that do not serve."""
        return self._supervisor.problems

    async def families(self) -> list[Family]:
        """What the main process and the workers count, and counted before they ended."""
        return await self._supervisor.families(self._metrics.families(self._routes.policies.values(), None))

    async def abandon(self) -> None:
        """In every worker."""
        await self._supervisor.abandon()

    async def _reopen_logs(self) -> None:
        await self._supervisor.reopen_logs()

    async def _take_up(self, settings: Settings) -> Routes:
        check(settings)
        places = placed(policy_engines(settings), self._fleet.places, self._board.board.replicas)
        routes = self._fleet.build(settings, places)
        self._board.keep(places)
        await self._fleet.follow(routes, places)
        self._routes = routes
        await self._supervisor.reload(settings, places)
        return routes


def warn_of_risks(settings: Settings) -> None:
    """Log what is allowed, and seldom meant."""
    if settings.tenant:
        for entry in settings.routes:
            if entry.policy is None and entry.api_key is None:
                log.warning(
                    "model %s has no api_key: with tenants configured, the keys of callers go no further, so its"
                    " upstream gets none",
                    entry.name,
                )
    chosen = settings.sidecar
    if not is_loopback(chosen.admin_host) and chosen.admin_secret is None:
        log.warning("the admin port is open to the network without a key: set [sidecar] admin_key, or admin_host")
    if not is_loopback(chosen.host) and not settings.tenant:
        log.warning("the agents' port is open to the network without keys: configure [[tenant]], or host")


def warn_of_open_doors(before: Settings, after: Settings) -> None:
    """Log which ports a reload has opened to whoever reaches them."""
    if before.tenant and not after.tenant:
        log.warning("all %d [[tenant]] entries are gone: the agents' port asks for no key any more", len(before.tenant))
    if before.sidecar.admin_secret is not None and after.sidecar.admin_secret is None:
        log.warning("[sidecar] admin_key is gone: the admin port asks for no key any more")
