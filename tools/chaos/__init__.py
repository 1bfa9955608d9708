"""Chaos tests: inject faults into a run over processes, and check that it ends as if there had been none.

``python -m tools.chaos`` runs them. ``schedule`` draws the faults from a seed, ``testbed`` starts the servers and the
processes of a run, ``network`` and ``lossy_link`` put one process behind a link that can be cut, ``watcher`` reads the
progress of the run, ``faults`` injects faults and undoes them, ``run`` waits until a run has recovered, ``driver`` does
all this for one fault after another, ``report`` contains the results, and ``watchdog`` cleans up if the chaos run is
killed.
"""

from __future__ import annotations

from tools.chaos.schedule import KINDS, Fault

__all__ = ["KINDS", "Fault"]
