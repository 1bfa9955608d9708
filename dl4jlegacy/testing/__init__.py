"""Checks of a program's own parts against the contract of a run: call them in your tests.

::

    from dl4jlegacy.testing import check_aggregator, check_iterator, check_jobs, check_performer, check_strategy

    def test_my_router():
        check_strategy(MyRouter())

Each returns nothing, or raises ``ContractError`` (for an iterator: ``DataError``) with the names of class and method. A
run checks parts of the same contract itself; these checks find more, such as an answer that changes when it is
requested again.
"""

from dl4jlegacy.testing.aggregators import check_aggregator
from dl4jlegacy.testing.iterators import check_iterator
from dl4jlegacy.testing.jobs import check_jobs
from dl4jlegacy.testing.performers import check_performer
from dl4jlegacy.testing.strategies import check_strategy

__all__ = ["check_aggregator", "check_iterator", "check_jobs", "check_performer", "check_strategy"]
