"""Chaos: injects faults into a run over processes, and proves that it ends as if there had been none.

``python -m tools.chaos`` runs it. ``schedule`` draws the faults from a seed, ``testbed`` starts the servers and the
processes of a run, ``network`` and ``lossy_link`` put one of them behind a link that can be cut, ``watcher`` reads the
progress of the run, ``faults`` injects faults and undoes them, ``run`` waits until a run has recovered, ``driver`` does
all this for one fault after another, ``report`` has the results, and ``watchdog`` cleans up if all this is killed.
"""

from __future__ import annotations

from tools.chaos.schedule import KINDS, Fault

__all__ = ["KINDS", "Fault"]
