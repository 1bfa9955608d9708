"""The preflight behind ``dl4j doctor``: checks whether this machine and the named servers are ready for a run.

``examine`` runs the checks of ``all_checks``, each with a deadline. A check is a function of the ``Settings`` that
returns a ``Finding``. Nothing is changed unless ``fix`` is given, and then only what a finding names.
"""

from dl4jlegacy.doctor.check import Check, Finding, Result, Settings
from dl4jlegacy.doctor.checks import all_checks
from dl4jlegacy.doctor.examination import examine

__all__ = ["Check", "Finding", "Result", "Settings", "all_checks", "examine"]
