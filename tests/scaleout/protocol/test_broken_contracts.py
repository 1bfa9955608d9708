"""The simulator's hostile schedules with parts of somebody's own that break their contract."""

from __future__ import annotations

import logging

import pytest

from dl4jlegacy.errors import ContractError, NotFiniteError
from dl4jlegacy.scaleout.state.records import HEAD, Head, decode_record
from tests.support.broken_contracts import BREAKS, run_broken

from .test_protocol import network_work

METHODS = {**dict.fromkeys(("again", "left out", "twice"), "open_slots"), "folds twice": "send_work"}


def simulate(how: str | float, seeds: range) -> None:
    logging.disable(logging.WARNING)
    try:
        for seed in seeds:
            world = run_broken(network_work(), seed, how)
            failure = decode_record(world.store.now[HEAD], Head).failure
            assert failure is not None and failure.code in (ContractError.code, NotFiniteError.code), f"seed {seed}"
            method = (
                "finish" if how == "good" or isinstance(how, float) else "slots" if how != "folds twice" else "send"
            )
            assert method in failure.message, f"seed {seed}: {failure.message}"
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("how", BREAKS, ids=str)
@pytest.mark.everyday(3)
def test_a_part_that_breaks_its_contract_fails_the_run_by_name(
    how: str | float,
) -> None:
    simulate(how, range(1, 9))


@pytest.mark.release
@pytest.mark.parametrize("how", BREAKS, ids=str)
def test_many_schedules_of_parts_that_break_their_contract(how: str | float) -> None:
    simulate(how, range(1, 201))
