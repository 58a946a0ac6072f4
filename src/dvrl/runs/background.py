"""Work that training need not wait for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """One piece of work after the other; what fails is raised where it is next waited for."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def do(self, work: Callable[[], None]) -> None:
        """Begin, once the piece before is done."""
        self.settle()
        self._last = self._worker.submit(work)

    def settle(self) -> None:
        """Wait for what was begun."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def close(self) -> None:
        """The same, whether it fails or not; nothing can be begun any more."""
        self._worker.shutdown()
