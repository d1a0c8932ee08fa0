"""One engine of a policy: which weights it runs, and whether calls may go to it.

Invariant: a call is stamped with a version only if the engine itself named that version before the call began and
again after it ended, and nothing changed in between (`Replica.stamp` equals what `Replica.confirmed` returns). The
engine is the only source of a version: what we published is never taken for what runs. A swap by another process of
this sidecar is a change too, also one that was undone during the call: the board's epoch tells. Once a version was
published here, no other is stamped, but 0: what a number means that somebody else gave is not known.

No call goes to an engine with unknown weights (`broken`). One that runs other weights than it should serves when no
other can.
"""

import asyncio
import contextlib
import logging

import aiohttp

from sidecar.board import ASIDE, BROKEN, PAUSED, UPDATING, Board
from sidecar.in_flight import InFlight, Stamp
from sidecar.inquiry import Inquiry
from sidecar.orders import Orders
from sidecar.standing import Standing, problem_of, standing_of
from sidecar.traits import Traits
from sidecar.turns import Turns

__all__ = ["Replica", "Stamp", "Standing"]

log = logging.getLogger(__name__)

SETTLE_S, SETTLE_LIMIT_S = 0.1, 1.0
"""How long calls that have ended may still be proved before weights change: those of other processes, and our own."""
HALF_LOADED = "a weight update failed half-way"
FOUND_PAUSED = "it was found paused, in the middle of a weight update it seems"

SERVES, LAST_RESORT, DOWN, UNFIT = 0, 1, 2, 3

Choice = tuple[int, bool, bool]


class Replica(Orders):
    """One engine. All state changes happen on the event loop's thread; `board` holds what processes share."""

    def __init__(self, url: str, board: Board | None = None, place: int = 0) -> None:
        super().__init__(board or Board.memory(1), place)
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
        self._answers = False
        self.loss = f"engine at {url} was not asked yet"
        """Why it is not known what it runs, while it does not answer."""
        self.broken_by = HALF_LOADED
        self.aside_since = ""
        """Why it could not be brought to the version it should run."""
        self._told_lost = False
        self._seen = self._board.epoch(place)
        self._stamp = Stamp(0, None)
        self._turns = Turns(lambda: self.choice, shared=not self._board.leads, name=url)
        self._serving = InFlight(self._board, place, lambda: self.stamp)
        self._inquiry = Inquiry(self)

    @property
    def stamp(self) -> Stamp:
        """What calls are stamped with now."""
        known = self._known
        vouched = known.version is None or self._vouched(known.version)
        return known if vouched else Stamp(known.epoch, None)

    @property
    def version(self) -> int | None:
        """The version the engine named last; None while unknown or changing."""
        return self._known.version

    @property
    def _known(self) -> Stamp:
        epoch = self._board.epoch(self._place)
        if epoch != self._seen:
            self._seen = epoch
            self._stamp = Stamp(self._stamp.epoch + 1, None)
        return self._stamp

    def _vouched(self, version: int) -> bool:
        wanted = self._board.wanted(self._place)
        return not self.aside if wanted is None else version in (0, wanted)

    @property
    def answers(self) -> bool:
        """Whether the engine answered last time, and could tell its version."""
        return self._answers

    @property
    def healthy(self) -> bool:
        """Whether the engine answers, and its word on its weights is to be believed."""
        return self._answers and not self.broken

    @property
    def behind(self) -> bool:
        """Whether it should run a certain version, answers, and does not run it."""
        if self.wanted is None or not self._answers or self.updating:
            return False
        return self.broken or self.version not in (None, self.wanted)

    @property
    def rank(self) -> int:
        """In which order replicas are chosen: those in service, those that only answer, those that are down.

        Those whose weights are unknown are never.
        """
        if self.broken:
            return UNFIT
        if self._answers and not self.aside and self.traits.as_pinned:
            return SERVES
        return LAST_RESORT if self._answers or self.mute else DOWN

    @property
    def in_service(self) -> bool:
        """Whether it answers, and runs what it should."""
        return self.rank == SERVES and not self.behind

    @property
    def problem(self) -> str:
        """What is wrong with it, and what to do; empty where nothing is."""
        return problem_of(self)

    @property
    def standing(self) -> Standing:
        """What becomes of calls for it."""
        return standing_of(self)

    @property
    def is_open(self) -> bool:
        """Whether new calls may go to it: no update, no pause, weights that are known, or not about to be changed."""
        if self.broken:
            return False
        if not self._board.flags(self._place) & (UPDATING | PAUSED) and (self.aside or not self.behind):
            return True
        return not self._board.led

    @property
    def choice(self) -> Choice:
        """All that decides whether calls may go to it."""
        return self.rank, self.is_open, self.closed

    async def turned(self, choice: Choice) -> None:
        """Wait until its `choice` is another one."""
        await self._turns.away_from(choice)

    def serving(self) -> InFlight:
        """A context in which a call counts as in flight; gives the stamp at its start."""
        return self._serving

    async def close(self) -> None:
        """New calls wait from now on; calls that have ended get a moment to be proved before the weights change."""
        self._board.set_flag(self._place, UPDATING, on=True)
        self._turn()
        try:
            await self._settle()
        except BaseException:
            self._board.set_flag(self._place, UPDATING, on=False)
            self._turn()
            raise

    async def _settle(self) -> None:
        if not self._board.serves:
            await asyncio.sleep(SETTLE_S)  # other processes ask for their calls
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_LIMIT_S):
                await self.confirmed()
                await self.confirmed()  # for those that ended while the first question was asked

    def begin_update(self) -> None:
        """The publisher begins to change the weights: new calls wait, and no call is stamped."""
        self._board.set_flag(self._place, UPDATING, on=True)
        self._board.bump(self._place)

    def end_update(self, loaded: int | None, *, touched: bool) -> None:
        """An update has ended: the version it loaded; without one, weights are unknown if it `touched` them."""
        if touched or loaded is not None:
            self.broken_by, self.aside_since = HALF_LOADED, ""
            self._board.set_flag(self._place, BROKEN, on=loaded is None)
        if loaded is not None:
            self._board.set_wanted(self._place, loaded)
            self._board.set_flag(self._place, ASIDE, on=False)
        self._board.bump(self._place)
        self._board.set_flag(self._place, UPDATING, on=False)
        if loaded is not None:
            self.found(loaded)
        elif touched:
            log.warning("replica broken problem=%s", self.problem)
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

    def set_aside(self, since: str) -> None:
        """The publisher could not bring it to the version it should run: others serve, it only as a last resort."""
        news = not self.aside or since != self.aside_since
        self.aside_since = since
        self._board.set_flag(self._place, ASIDE, on=True)
        if news:
            log.warning("replica out of service problem=%s", self.problem)
        self._turn()

    def found(self, version: int) -> None:
        """The engine named its version."""
        known = self.version
        if not self._answers:
            log.info("replica found url=%s version=%d", self.url, version)
        if known not in (None, version):
            # Not our doing: a restart that was too quick to be seen otherwise.
            self.transfer_ready, self.traits.stream_mark = False, None
        self._answers, self.mute, self.nameless, self._told_lost = True, False, False, False
        if version != known:
            self._stamp = Stamp(self._stamp.epoch + 1, version)
            if self._board.leads and self.aside and not self.broken and version == self.wanted:
                self._board.set_flag(self._place, ASIDE, on=False)
            self._turn()

    def lost(self, problem: str, *, mute: bool = False, nameless: bool = False) -> None:
        """The engine could not be reached or has no version: whatever it ran, it may be another one now."""
        if not self._told_lost or mute != self.mute:
            log.warning("replica lost url=%s problem=%s", self.url, problem)
        self._answers, self._told_lost, self.loss, self.transfer_ready = False, True, problem, False
        self.mute, self.nameless = mute, nameless
        self._stamp = Stamp(self._known.epoch + 1, None)
        self._inquiry.forget()
        if self._board.leads and self.aside and self.wanted is not None:
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
            self._answers, self.mute, self.nameless, self._told_lost = True, False, False, False
            self._turn()

    def gone(self, problem: str) -> None:
        """The engine's process has ended, and took half-loaded weights along."""
        if self._board.leads:
            self._board.set_flag(self._place, BROKEN | ASIDE, on=False)
        self.lost(problem)

    def left_paused(self) -> None:
        """The engine was found paused: its publisher died in the middle of an update.

        Where that was this sidecar, its record has what to load. Else it serves, and nobody vouches for its weights.
        """
        self._board.bump(self._place)
        if self.wanted is not None:
            self._board.set_flag(self._place, BROKEN, on=True)
            self.broken_by = FOUND_PAUSED
        self._board.bump(self._place)
        self.revived()
        if self.broken:
            log.warning("replica broken problem=%s", self.problem)
        else:
            self.set_aside(FOUND_PAUSED)

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
            self._turns.stop()

    def _turn(self) -> None:
        self.changed.set()
        self._turns.happened()
