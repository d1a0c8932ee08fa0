"""One engine of a policy: which weights it runs, and whether calls may go to it.

Invariant: a call is stamped with a version only if the engine itself named that version before the call began and
again after it ended, and nothing changed in between (`Replica.stamp` equals what `Replica.confirmed` returns). The
engine is the only source of a version: what we published is never taken for what runs. A swap by another process of
this sidecar is a change too, also one that was undone during the call: the board's epoch tells.
"""

import asyncio
import logging

import aiohttp

from sidecar.board import ASIDE, BROKEN, PAUSED, UPDATING, Board
from sidecar.in_flight import InFlight, Stamp
from sidecar.inquiry import Inquiry
from sidecar.traits import Traits

__all__ = ["Replica", "Stamp"]

log = logging.getLogger(__name__)

GATE_POLL_S = 0.005
"""How often a closed gate, which another process may open, is looked at while calls wait."""
HALF_LOADED = "a weight update failed half-way: publish again"
FOUND_PAUSED = "found paused in the middle of a weight update: publish again"

SERVES, LAST_RESORT, DOWN = 0, 1, 2


class Replica:
    """One engine. All state changes happen on the event loop's thread; `board` holds what processes share."""

    def __init__(self, url: str, board: Board | None = None, place: int = 0) -> None:
        self.url = url
        self.transfer_ready = False
        self.mute = False
        """It answers but cannot tell its version: nobody waits for one."""
        self.nameless = False
        """It is mute because its version is no number, which a publication mends."""
        self.traits = Traits()
        """What it is like, beside its weights."""
        self.changed = asyncio.Event()
        """Set whenever it may have come to run other weights than it should."""
        self._board = board or Board.memory(1)
        self._place = place
        self._answers = False
        self._problem = "not asked yet"
        self._broken_problem = HALF_LOADED
        self._aside_problem = ""
        self._seen = self._board.epoch(place)
        self._stamp = Stamp(0, None)
        self._poke = asyncio.Event()
        self._serving = InFlight(self._board, place, lambda: self.stamp)
        self._poller: asyncio.Task[None] | None = None
        self._inquiry = Inquiry(self)

    @property
    def stamp(self) -> Stamp:
        """What is known now."""
        epoch = self._board.epoch(self._place)
        if epoch != self._seen:
            self._seen = epoch
            self._stamp = Stamp(self._stamp.epoch + 1, None)
        return self._stamp

    @property
    def version(self) -> int | None:
        """The version the engine named last; None while unknown or changing."""
        return self.stamp.version

    @property
    def wanted(self) -> int | None:
        """The version it should run; None: whichever it has."""
        return self._board.wanted(self._place)

    @property
    def answers(self) -> bool:
        """Whether the engine answered last time, and could tell its version."""
        return self._answers

    @property
    def updating(self) -> bool:
        """Whether its weights are being changed."""
        return bool(self._board.epoch(self._place) % 2)

    @property
    def leads(self) -> bool:
        """Whether this process may change it: it publishes."""
        return self._board.leads

    @property
    def healthy(self) -> bool:
        """Whether the engine answers, and its word on its weights is to be believed."""
        return self._answers and not self.broken

    @property
    def paused(self) -> bool:
        """An operator holds new calls back."""
        return bool(self._board.flags(self._place) & PAUSED)

    @property
    def broken(self) -> bool:
        """A load failed half-way: what the engine says of its version is not believed until one succeeds."""
        return bool(self._board.flags(self._place) & BROKEN)

    @property
    def aside(self) -> bool:
        """It could not be brought to the version it should run."""
        return bool(self._board.flags(self._place) & ASIDE)

    @property
    def behind(self) -> bool:
        """Whether it should run a certain version, answers, and does not run it."""
        if self.wanted is None or not self._answers or self.updating:
            return False
        return self.broken or self.version not in (None, self.wanted)

    @property
    def rank(self) -> int:
        """In which order replicas are chosen: those in service, those that only answer, those that are down."""
        if self.healthy and not self.aside and self.traits.as_pinned:
            return SERVES
        return LAST_RESORT if self._answers or self.mute else DOWN

    @property
    def in_flight(self) -> int:
        """Calls that it serves now, of all processes."""
        return self._board.load(self._place)

    @property
    def problem(self) -> str:
        """What is wrong with it, and what to do; empty where nothing is."""
        if self.broken:
            return self._broken_problem if not self.aside else f"{self._broken_problem}. {self._aside_problem}"
        if not self._answers:
            return self._problem
        if self.aside:
            return self._aside_problem
        if self.behind:
            return f"engine at {self.url} is on version {self.version}: it is being brought to version {self.wanted}"
        return self.traits.problem(self.url)

    @property
    def is_open(self) -> bool:
        """Whether new calls may go to it: no update, no pause, and not about to be brought to another version."""
        if not self._board.flags(self._place) & (UPDATING | PAUSED) and (self.aside or not self.behind):
            return True
        return not self._board.led

    async def opened(self) -> None:
        """Wait until new calls may go to it."""
        while not self.is_open:
            self._poke.clear()
            if not self._board.leads and (self._poller is None or self._poller.done()):
                self._poller = asyncio.create_task(self._poll_gate(), name=f"gate {self.url}")
            await self._poke.wait()

    async def _poll_gate(self) -> None:
        """Another process opens the gate: look again and again, once for all calls that wait."""
        while not self.is_open:  # noqa: ASYNC110 - no event crosses processes
            await asyncio.sleep(GATE_POLL_S)
        self._poke.set()

    def serving(self) -> InFlight:
        """A context in which a call counts as in flight; gives the stamp at its start."""
        return self._serving

    def begin_update(self) -> None:
        """The publisher begins to change the weights: new calls wait, and no call is stamped."""
        self._board.set_flag(self._place, UPDATING, on=True)
        self._board.bump(self._place)

    def end_update(self, loaded: int | None, *, touched: bool) -> None:
        """An update has ended: the version it loaded; without one, weights are unknown if it `touched` them."""
        self._broken_problem = HALF_LOADED
        self._board.set_flag(self._place, BROKEN, on=touched and loaded is None)
        if loaded is not None:
            self._board.set_wanted(self._place, loaded)
            self._board.set_flag(self._place, ASIDE, on=False)
        self._board.bump(self._place)
        self._board.set_flag(self._place, UPDATING, on=False)
        if loaded is not None:
            self.found(loaded)
        elif touched:
            log.warning("replica broken url=%s problem=%s", self.url, HALF_LOADED)
        self._turn()

    def set_paused(self, *, on: bool) -> None:
        """The operator's pause begins or ends."""
        self._board.set_flag(self._place, PAUSED, on=on)
        self._turn()

    def set_wanted(self, version: int | None) -> None:
        """The publisher says which version it should run."""
        self._board.set_wanted(self._place, version)
        if self.version == version or version is None:
            self._board.set_flag(self._place, ASIDE, on=False)
        self._turn()

    def set_aside(self, problem: str) -> None:
        """The publisher could not bring it to the version it should run: others serve, it only as a last resort."""
        log.warning("replica out of service url=%s problem=%s", self.url, problem)
        self._aside_problem = problem
        self._board.set_flag(self._place, ASIDE, on=True)
        self._turn()

    def found(self, version: int) -> None:
        """The engine named its version."""
        known = self.version
        if not self._answers:
            log.info("replica found url=%s version=%d", self.url, version)
        if known not in (None, version):
            # Not our doing: a restart that was too quick to be seen otherwise.
            self.transfer_ready, self.traits.stream_mark = False, None
        self._answers, self._problem, self.mute, self.nameless = True, "", False, False
        if version != known:
            self._stamp = Stamp(self._stamp.epoch + 1, version)
            if self._board.leads and self.aside and not self.broken and version == self.wanted:
                self._board.set_flag(self._place, ASIDE, on=False)
            self._turn()

    def lost(self, problem: str) -> None:
        """The engine could not be reached or has no version: whatever it ran, it may be another one now."""
        if self._answers or problem != self._problem:
            log.warning("replica lost url=%s problem=%s", self.url, problem)
        self._answers, self._problem, self.transfer_ready = False, problem, False
        self._stamp = Stamp(self.stamp.epoch + 1, None)
        self._inquiry.forget()
        if self._board.leads and self.aside:
            self._board.set_flag(self._place, ASIDE, on=False)  # it is judged anew when it comes back
        self._turn()

    def pin_logprobs_mode(self, mode: str | None) -> None:
        """What its log-probs must be of; None: whatever they are of."""
        if mode != self.traits.pinned_mode:
            self.traits.pinned_mode = mode
            self.doubt()

    def revived(self) -> None:
        """The engine of a broken replica answers: it can be loaded, and is no word to be believed."""
        if not self._answers:
            self._answers, self._problem = True, ""
            self._turn()

    def gone(self, problem: str) -> None:
        """The engine's process has ended, and took half-loaded weights along."""
        if self._board.leads:
            self._board.set_flag(self._place, BROKEN, on=False)
        self.lost(problem)

    def left_paused(self) -> None:
        """The engine was found paused: its publisher died in the middle of an update."""
        self._broken_problem = FOUND_PAUSED
        self._board.bump(self._place)
        self._board.set_flag(self._place, BROKEN, on=True)
        self._board.bump(self._place)
        log.warning("replica broken url=%s problem=%s", self.url, FOUND_PAUSED)
        self.revived()

    def doubt(self) -> None:
        """Something odd happened, a restart perhaps: ask the engine soon."""
        self.traits.stream_mark = None
        self._inquiry.demand()

    async def confirmed(self) -> Stamp:
        """The stamp after asking the engine once more, by a question that begins after this call."""
        await self._inquiry.answered()
        return self.stamp

    async def watch(self, session: aiohttp.ClientSession) -> None:
        """Keep asking the engine for its version, on demand and all the time. Runs until cancelled."""
        try:
            await self._inquiry.run(session)
        finally:
            if self._poller is not None:
                self._poller.cancel()

    def _turn(self) -> None:
        self.changed.set()
        self._poke.set()
