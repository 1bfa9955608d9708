"""The plan: every batch of every epoch exactly once, in slots that depend on the Conf alone."""

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dl4jlegacy.errors import ConfError
from dl4jlegacy.scaleout.plan import VALIDATE, Phase, Plan, Validation
from dl4jlegacy.scaleout.state.records import Head, Manifest, advance
from dl4jlegacy.scaleout.strategies import STRATEGIES, create_router

validations = st.builds(
    lambda batches, every: Validation(batches=batches, examples=batches, batch_size=1, every=every),
    st.integers(1, 9),
    st.integers(0, 9),
)
plans = st.builds(
    lambda phases, validation, batches, tail, size, jobs, frequency, warm, few: Plan(
        phases=phases,
        batches=batches,
        examples=(batches - 1) * size + 1 + tail % size,
        batch_size=size,
        jobs_per_round=jobs,
        averaging_frequency=frequency,
        warm_start=warm,
        warm_start_jobs=1 + few % jobs,
        validation=validation if any(phase.kind == "finetune" for phase in phases) else None,
    ),
    st.lists(
        st.builds(Phase, kind=st.sampled_from(["finetune", "pretrain"]), epochs=st.integers(1, 3)),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.none() | validations,
    st.integers(1, 14),
    st.integers(0, 100),
    st.integers(1, 5),
    st.integers(1, 6),
    st.integers(1, 5),
    st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.99, 1.0]),
    st.integers(0, 5),
)


@given(plans)
def test_every_batch_of_every_epoch_is_in_exactly_one_slot(plan):
    seen = []
    for round_ in range(plan.total_rounds):
        for slot in range(plan.slots(round_)):
            part = plan.slot(round_, slot)
            if part.validates:
                continue
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
def test_rounds_that_are_short_are_spread_evenly_over_their_slots(plan):
    for round_ in range(plan.total_rounds):
        parts = [plan.slot(round_, slot) for slot in range(plan.slots(round_))]
        sizes = [part.last - part.first for part in parts]
        if parts[0].validates or parts[-1].last == plan.batches:
            assert max(sizes) - min(sizes) <= 1


def rounds_of_epoch(plan, round_):
    """How many rounds of training the epoch of a round has."""
    epoch = plan.slot(round_, 0).epoch
    rounds = [r for r in range(plan.total_rounds) if not plan.is_validation(r)]
    return sum(plan.slot(r, 0).epoch == epoch for r in rounds)


@given(plans)
def test_a_warm_start_is_a_part_of_each_phases_first_epoch_with_narrower_rounds_and_nothing_else(plan):
    cold = msgspec.structs.replace(plan, warm_start=0.0)
    full = plan.averaging_frequency
    for phase, (first, epochs) in enumerate(itertools.pairwise(plan._first_epochs)):
        for epoch in range(first, epochs):
            rounds, usual = (
                [[p.slot(r, s) for s in range(p.slots(r))] for r in range(p.total_rounds) if is_of(p, r, phase, epoch)]
                for p in (plan, cold)
            )
            if epoch > first:
                assert [[part[4:6] for part in parts] for parts in rounds] == [[s[4:6] for s in r] for r in usual]
                continue
            few = plan.warm_start_jobs
            narrow = [parts for parts in rounds if plan.width(parts[0].round) == few]
            assert narrow == rounds[: len(narrow)]
            if few < plan.jobs_per_round:
                batches = sum(part.last - part.first for parts in narrow for part in parts)
                wanted = plan.warm_start * plan.batches
                assert min(wanted, plan.batches // (few * full) * few * full) <= batches < wanted + few * full
                assert all(plan.width(parts[0].round) == plan.jobs_per_round for parts in rounds[len(narrow) :])
                assert all(len(parts) == few for parts in narrow[:-1])
            assert all(len(parts) <= plan.jobs_per_round for parts in rounds)
            assert all(len(parts) == plan.jobs_per_round for parts in rounds[len(narrow) : -1])


def is_of(plan, round_, phase, epoch):
    """Whether a round trains in an epoch of a phase."""
    return not plan.is_validation(round_) and plan.phase_of(round_) == phase and plan.slot(round_, 0).epoch == epoch


def test_a_warm_start_of_an_epoch_of_ten_batches():
    """Half of it by one, then three at a time; the second epoch as always."""
    plan = Plan(phases=(Phase(epochs=2),), batches=10, examples=10, batch_size=1, jobs_per_round=3, warm_start=0.5)
    rounds = [[plan.slot(r, s)[3:6] for s in range(plan.slots(r))] for r in range(plan.total_rounds)]
    assert [len(parts) for parts in rounds] == [1, 1, 1, 1, 1, 3, 2, 3, 3, 3, 1]
    assert [part for parts in rounds for part in parts] == [(e, b, b + 1) for e in range(2) for b in range(10)]
    assert [plan.width(r) for r in range(8)] == [1, 1, 1, 1, 1, 3, 3, 3]
    assert [plan.slot(r, 0).iteration for r in range(11)] == list(range(11))


@given(plans)
def test_a_validation_comes_after_so_many_rounds_and_after_the_last_one(plan):
    trained, since = 0, 0
    for round_ in range(plan.total_rounds):
        assert plan.training_round(round_) == trained
        if plan.is_validation(round_):
            assert plan.work_of(round_).kind == VALIDATE and not plan.is_validation(round_ - 1)
            assert plan.phase_of(round_) == plan.phase_of(round_ - 1)
            every = plan.validation.every or rounds_of_epoch(plan, round_ - 1)
            is_last = round_ + 1 == plan.total_rounds or plan.phase_of(round_ + 1) != plan.phase_of(round_)
            assert since == every or (is_last and 0 < since < every)
            since = 0
        else:
            trained += 1
            since += plan.work_of(round_).kind == "finetune"
            assert plan.work_of(round_) == plan.phases[plan.phase_of(round_)]
    assert since == 0 or plan.validation is None
    assert trained == plan.total_rounds - len([r for r in range(plan.total_rounds) if plan.is_validation(r)])
    assert plan.epochs_before(plan.total_rounds) == sum(p.epochs for p in plan.phases if p.kind == "finetune")


@given(plans)
def test_a_validation_round_has_every_batch_of_its_data_once(plan):
    for round_ in filter(plan.is_validation, range(plan.total_rounds)):
        parts = [plan.slot(round_, slot) for slot in range(plan.slots(round_))]
        assert len(parts) <= plan.jobs_per_round and {part.epoch for part in parts} == {plan.slot(round_ - 1, 0).epoch}
        assert [batch for part in parts for batch in range(part.first, part.last)] == [*range(plan.validation.batches)]


@given(plans)
def test_validations_leave_the_training_as_it_is(plan):
    alone = msgspec.structs.replace(plan, validation=None)
    training = [r for r in range(plan.total_rounds) if not plan.is_validation(r)]
    for trained, round_ in enumerate(training):
        parts = [plan.slot(round_, slot) for slot in range(plan.slots(round_))]
        assert [part._replace(round=trained) for part in parts] == [
            alone.slot(trained, slot) for slot in range(alone.slots(trained))
        ]
        if trained + 1 < len(training):
            assert plan.ends_phase(round_, round_ + 1) == alone.ends_phase(trained, trained + 1)


@settings(max_examples=50)
@given(plans, st.sampled_from(list(STRATEGIES)), st.integers(1, 9), st.randoms(use_true_random=False))
def test_every_router_opens_a_validation_alone_and_none_beside_it(plan, name, window, rng):
    router = create_router(name, window=window if name == "hogwild" else 0)
    head = Head(run="r", version=0, round=0, model=Manifest("", 0, 0))
    while head.round < plan.total_rounds:
        opened = router.open_slots(plan, head)
        rounds = {plan.at(number)[0] for number in opened}
        if plan.is_validation(head.round):
            assert opened == [plan.number(head.round, slot) for slot in range(plan.slots(head.round))]
            folded = opened
        else:
            assert opened and not any(map(plan.is_validation, rounds))
            folded = opened if router.binds_model else [n for n in opened if rng.random() < 0.5] or opened[-1:]
        head = advance(head, plan, folded)
    assert (head.batches, head.examples) == (plan.total_batches, plan.total_examples)


def of_epochs(batches, frequency, jobs, epochs, **fields):
    return Plan(
        phases=(Phase(epochs=epochs),), batches=batches, examples=batches, batch_size=1, jobs_per_round=jobs,
        averaging_frequency=frequency, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("batches", [1, 5, 7, 10, 12, 13])
@pytest.mark.parametrize("frequency", [1, 2, 3, 5, 20])
@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_no_iteration_counts_a_batch_that_never_was(batches, frequency, jobs):
    plan = of_epochs(batches, frequency, jobs, 3)
    longest = [
        max(slot.last - slot.first for slot in (plan.slot(r, s) for s in range(plan.slots(r))))
        for r in range(plan.total_rounds)
    ]
    begun = [sum(longest[:r]) for r in range(plan.total_rounds + 1)]
    assert [plan.iteration_at(r) for r in range(plan.total_rounds + 1)] == begun
    assert [plan.slot(r, 0).iteration for r in range(plan.total_rounds)] == begun[:-1]
    if jobs == 1:
        assert begun[-1] == plan.total_batches
    assert plan.has_short_rounds is (longest[-1] < frequency)


@pytest.mark.parametrize("frequency", [1, 3, 4])
@pytest.mark.parametrize("validated", [False, True])
def test_a_run_that_goes_on_counts_and_draws_as_one_that_did_not_end(frequency, validated):
    validation = Validation(batches=2, examples=2, batch_size=1) if validated else None
    whole, first = (of_epochs(10, frequency, 2, n, validation=validation) for n in (5, 2))
    done = first.iteration_at(first.total_rounds)
    second = of_epochs(10, frequency, 2, 3, first_epoch=2, first_iteration=done, validation=validation)
    for round_ in range(second.total_rounds):
        here, there = second.slot(round_, 0), whole.slot(first.total_rounds + round_, 0)
        assert (here.iteration, here.training_round, here.epoch) == (there.iteration, there.training_round, there.epoch)
    assert second.iteration_at(second.total_rounds) == whole.iteration_at(whole.total_rounds)


def test_a_warm_start_counts_its_own_rounds():
    plan = of_epochs(10, 2, 3, 2, warm_start=0.4)  # 2 rounds of one slot, 6 batches in one of three; then 6 and 4
    assert [plan.iteration_at(r) for r in range(plan.total_rounds + 1)] == [0, 2, 4, 6, 8, 10]
    assert of_epochs(9, 2, 3, 1, warm_start=1.0).iteration_at(5) == 9


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


def test_nonsense_is_no_validation():
    with pytest.raises(ConfError, match="examples 0"):
        Validation(batches=1, examples=0, batch_size=1)
    with pytest.raises(ConfError, match="every -1 rounds"):
        Validation(batches=1, examples=1, batch_size=1, every=-1)
    with pytest.raises(ConfError, match="only pretrains"):
        Plan(
            phases=(Phase(kind="pretrain", layer=0),),
            batches=1,
            examples=1,
            batch_size=1,
            jobs_per_round=1,
            validation=Validation(batches=1, examples=1, batch_size=1),
        )


def test_a_plan_without_epochs_is_refused():
    with pytest.raises(ConfError, match="no epoch"):
        Plan(phases=(Phase(epochs=0),), batches=1, examples=1, batch_size=1, jobs_per_round=1)


def test_a_slot_that_is_not_in_the_plan_is_refused():
    plan = Plan(phases=(Phase(),), batches=3, examples=3, batch_size=1, jobs_per_round=2)
    with pytest.raises(ConfError, match="no slot 1 in round 1"):
        plan.slot(1, 1)
