"""Peak memory of this process and all its descendants, sampled while a block runs."""

import threading
from types import TracebackType

import psutil

SAMPLE_EVERY_S = 1.0


class PeakMemory:
    """`with PeakMemory() as peak`: `peak.bytes` is the largest sum of resident sizes seen so far.

    Pages that processes share are counted for each of them, so the figure errs upwards.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        this = psutil.Process()
        while True:
            self.bytes = max(self.bytes, sum(map(_resident, [this, *this.children(recursive=True)])))
            if self._stop.wait(SAMPLE_EVERY_S):
                return


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:  # it ended between the listing and the look
        return 0
