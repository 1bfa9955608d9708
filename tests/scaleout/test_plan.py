"""The plan: every batch of every epoch exactly once, in slots that depend on the Conf alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.plan import Phase, Plan

plans = st.builds(
    lambda phases, batches, tail, size, jobs, frequency: Plan(
        phases=phases,
        batches=batches,
        examples=(batches - 1) * size + 1 + tail % size,
        batch_size=size,
        jobs_per_round=jobs,
        averaging_frequency=frequency,
    ),
    st.lists(st.builds(Phase, epochs=st.integers(1, 3)), min_size=1, max_size=3).map(tuple),
    st.integers(1, 40),
    st.integers(0, 100),
    st.integers(1, 8),
    st.integers(1, 6),
    st.integers(1, 5),
)


@given(plans)
def test_every_batch_of_every_epoch_is_in_exactly_one_slot(plan):
    seen = []
    for round_ in range(plan.total_rounds):
        for slot in range(plan.slots(round_)):
            part = plan.slot(round_, slot)
            assert 1 <= part.last - part.first <= plan.averaging_frequency
            seen += [(part.epoch, batch) for batch in range(part.first, part.last)]
    assert seen == [(e, b) for e in range(plan.total_epochs) for b in range(plan.batches)]


@given(plans)
def test_numbers_count_the_slots_of_the_run_and_lead_back_to_them(plan):
    addresses = [(r, s) for r in range(plan.total_rounds) for s in range(plan.slots(r))]
    assert [plan.number(*address) for address in addresses] == list(range(plan.total_slots))
    assert [plan.at(number) for number in range(plan.total_slots)] == addresses


@given(plans)
def test_slots_add_up_to_the_runs_batches_and_examples(plan):
    assert sum(plan.batches_of(n) for n in range(plan.total_slots)) == plan.total_batches
    assert sum(plan.examples_of(n) for n in range(plan.total_slots)) == plan.total_examples


@given(plans)
def test_a_short_last_round_is_spread_evenly_over_its_slots(plan):
    last = [
        plan.batches_of(plan.number(plan.rounds_per_epoch - 1, s)) for s in range(plan.slots(plan.rounds_per_epoch - 1))
    ]
    assert max(last) - min(last) <= 1


def test_iterations_start_anew_with_every_phase():
    plan = Plan(
        phases=(Phase(kind="pretrain", layer=0), Phase(epochs=2)),
        batches=4,
        examples=8,
        batch_size=2,
        jobs_per_round=2,
        averaging_frequency=2,
    )
    assert [plan.slot(r, 0).iteration for r in range(plan.total_rounds)] == [0, 0, 2]
    assert [plan.phase_of(r) for r in range(plan.total_rounds)] == [0, 1, 1]


@pytest.mark.parametrize("field", ["batches", "examples", "batch_size", "jobs_per_round", "averaging_frequency"])
def test_a_plan_with_nothing_in_it_is_refused(field):
    sizes = {"batches": 1, "examples": 1, "batch_size": 1, "jobs_per_round": 1, field: 0}
    with pytest.raises(ConfError, match=f"{field} is 0"):
        Plan(phases=(Phase(),), **sizes)


def test_a_plan_without_epochs_is_refused():
    with pytest.raises(ConfError, match="no epoch"):
        Plan(phases=(Phase(epochs=0),), batches=1, examples=1, batch_size=1, jobs_per_round=1)


def test_a_slot_that_is_not_in_the_plan_is_refused():
    plan = Plan(phases=(Phase(),), batches=3, examples=3, batch_size=1, jobs_per_round=2)
    with pytest.raises(ConfError, match="no slot 1 in round 1"):
        plan.slot(1, 1)
