"""Chaos: faults on purpose, and the proof that a run over processes comes out as if there had been none.

At the top, beside the command line (layer 5). ``schedule`` draws the faults from a seed, ``stage`` holds the servers
and processes of a run, ``network`` and ``wire`` put some of these behind a network that can be cut, ``watch`` sees how
the run gets on, ``faults`` breaks and mends, ``driver`` does it all in turn, ``report`` says what came of it, and
``command`` is ``dl4j bench chaos``.
"""

from __future__ import annotations

from dl4jlegacy.chaos.schedule import KINDS, Fault

__all__ = ["KINDS", "Fault"]
