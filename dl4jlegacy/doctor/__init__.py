"""The preflight behind ``dl4j doctor``: what of this machine, and of the servers that are named, is as a run needs it.

``examine`` does the checks that ``all_checks`` lists, each under a deadline of its own; a check is a function of the
``Settings`` that returns a ``Finding``. Nothing is changed but what a finding's ``mend`` names, and that only on
request (``mending``).
"""

from dl4jlegacy.doctor.check import Check, Finding, Result, Settings
from dl4jlegacy.doctor.checks import all_checks
from dl4jlegacy.doctor.examination import examine

__all__ = ["Check", "Finding", "Result", "Settings", "all_checks", "examine"]
