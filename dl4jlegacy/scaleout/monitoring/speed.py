"""The speed of a run, computed from the examples that it has counted over time."""

from __future__ import annotations

from collections import deque

__all__ = ["Speed"]

_WINDOW_SECONDS = 10.0


class Speed:
    """Examples per second over the last few seconds only, since phases differ and kernels are compiled at the start."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, seconds: float, examples: int) -> None:
        """Record the number of examples that the run had counted after ``seconds``."""
        if self._seen and (seconds < self._seen[-1][0] or examples < self._seen[-1][1]):
            self._seen.clear()  # another run, or one that went back
        if not self._seen or seconds > self._seen[-1][0]:
            self._seen.append((seconds, examples))
        while len(self._seen) > 2 and self._seen[1][0] <= seconds - _WINDOW_SECONDS:
            self._seen.popleft()

    @property
    def now(self) -> float:
        """The speed in examples per second; 0 while it is unknown."""
        if len(self._seen) < 2:
            return 0.0
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start)
