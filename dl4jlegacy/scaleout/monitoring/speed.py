"""The speed of a run, from the numbers of examples that were seen in it."""

from __future__ import annotations

from collections import deque

__all__ = ["Speed"]

_WINDOW_SECONDS = 10.0


class Speed:
    """Examples per second over the last few seconds: phases differ, and compiling kernels does not count."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, examples: int) -> None:
        """Note how many examples the run had counted after so many seconds."""
        if self._seen and (seconds < self._seen[-1][0] or examples < self._seen[-1][1]):
            self._seen.clear()  # of another run, or one that went back
        if not self._seen or seconds > self._seen[-1][0]:
            self._seen.append((seconds, examples))
        while len(self._seen) > 2 and self._seen[1][0] <= seconds - _WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def now(self) -> float:
        """The speed; 0 while it is not known."""
        if len(self._seen) < 2:
            return 0.0
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start)
