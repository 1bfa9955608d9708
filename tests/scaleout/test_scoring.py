"""What the end of a round means for the best model and the run's end: DL4J's conditions, as functions of the head."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy import ConfError, EarlyStopping, ValidationConf
from dl4jlegacy.nn.fitting.early_stopping import ScoreImprovementEpochTerminationCondition
from dl4jlegacy.scaleout.conf import Conf
from dl4jlegacy.scaleout.plan import Phase, Plan, Validation
from dl4jlegacy.scaleout.scoring import Scoring
from dl4jlegacy.scaleout.state.records import Failure, Figures, Head, Keys, Manifest, account, advance

VALIDATED = Plan(
    phases=(Phase(kind="pretrain", layer=0), Phase(epochs=30)),
    batches=4,
    examples=8,
    batch_size=2,
    jobs_per_round=2,
    validation=Validation(batches=1, examples=5, batch_size=5),
)
PLAIN = msgspec.structs.replace(VALIDATED, validation=None)


def heads(plan, scoring, scores, seconds=1.0):
    """Yield the head behind every round of a run whose scores these are."""
    head, left = Head(run="r", version=0, round=0, model=Manifest("model/0/m", 1, 1)), list(scores)
    while head.round < plan.total_rounds and not head.stopped_by:
        is_validation = plan.is_validation(head.round)
        ends_epoch = plan.epochs_before(head.round + 1) > plan.epochs_before(head.round)
        if not left and (is_validation or ends_epoch):
            return
        numbers = [plan.number(head.round, slot) for slot in range(plan.slots(head.round))]
        new = advance(head, plan, numbers, seconds=head.seconds + seconds)
        if is_validation:
            figures = Figures(loss=left.pop(0), examples=5, accuracy=0.0)
        else:
            figures, score = None, left.pop(0) if ends_epoch and plan.validation is None else 7.0
            new = msgspec.structs.replace(new, model=Manifest(f"model/{new.version}/m", 1, 1), score=score)
        head = scoring.closed(plan, head, new, figures)
        yield head


@pytest.mark.parametrize("plan", [VALIDATED, PLAIN], ids=["validated", "training score"])
@given(
    st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=1, max_size=25),
    st.integers(1, 4),
    st.integers(0, 8).map(lambda n: n / 4),
)
def test_improvement_is_counted_as_the_trainer_in_one_process_counts_it(plan, scores, patience, least):
    condition = ScoreImprovementEpochTerminationCondition(patience, least)
    end = next((i for i, score in enumerate(scores) if condition.terminate(i, score, minimize=True)), None)
    stopping = EarlyStopping(epochs_without_improvement=patience, min_improvement=least)
    last = list(heads(plan, Scoring(stopping=stopping), scores))[-1]
    seen = scores if end is None else scores[: end + 1]
    assert bool(last.stopped_by) == (end is not None)
    assert plan.epochs_before(last.round) in (len(seen), len(seen) + 1)
    assert last.best.score == min(seen)
    assert last.best.epoch == 1 + seen.index(min(seen))
    assert last.best.model.key == f"model/{last.best.version}/m"
    assert account(last, plan)[1] == 0 and (not last.stopped_by or account(last, plan) == (0, 0))


@pytest.mark.parametrize(
    ("stopping", "rounds", "said"),
    [
        (EarlyStopping(max_epochs=3), 2 + 3 * 3, "MaxEpochs: 3 of at most 3 are done"),
        (EarlyStopping(max_seconds=5.0), 5, "MaxTime: 5.0 of at most 5 seconds have passed"),
        (EarlyStopping(best_score=3.5), 2 + 3 * 3, "BestScore: loss 3 is better than 3.5"),
        (EarlyStopping(best_score=3.0), 2 + 3 * 4, "BestScore: loss 2 is better than 3"),
    ],
)
def test_each_condition_stops_the_run_and_says_so(stopping, rounds, said):
    *before, last = heads(VALIDATED, Scoring(stopping=stopping), [5.0, 4.0, 3.0, 2.0, 1.0])
    assert (last.round, last.status, last.stopped_by) == (rounds, "done", said)
    assert {head.status for head in before} == {"running"}


def test_a_condition_that_is_met_when_the_plan_is_done_stops_nothing():
    plan = msgspec.structs.replace(VALIDATED, phases=(Phase(epochs=2),))
    *_, last = heads(plan, Scoring(stopping=EarlyStopping(max_epochs=2)), [5.0, 4.0])
    assert last.round == plan.total_rounds and not last.stopped_by and last.status == "running"


def test_larger_is_better_of_the_metrics_that_are_shares():
    scoring, head = Scoring(metric="accuracy"), Head(run="r", version=0, round=4, model=Manifest("m", 1, 1))
    new = advance(head, VALIDATED, [VALIDATED.number(4, 0)])
    first = scoring.closed(VALIDATED, head, new, Figures(loss=1.0, examples=5, accuracy=0.5))
    better = scoring.closed(VALIDATED, head, first, Figures(loss=2.0, examples=5, accuracy=0.75))
    worse = scoring.closed(VALIDATED, head, better, Figures(loss=0.5, examples=5, accuracy=0.25))
    assert (first.best.score, better.best.score, worse.best.score) == (0.5, 0.75, 0.75)
    assert (worse.scores.score, worse.scores.without_improvement) == (0.25, 1)


def test_only_numbers_that_are_not_finite_are_an_invalid_score():
    head = Head(run="r", version=0, round=4, model=Manifest("m", 1, 1))
    scoring = Scoring(stopping=EarlyStopping(invalid_score=True))
    assert scoring.failed(head, Failure("DL4J-JOB", "no room", "w")) is None
    stopped = scoring.failed(head, Failure("DL4J-NOTFINITE", "score is NaN", "w"))
    assert (stopped.status, stopped.stopped_by) == ("done", "InvalidScore: score is NaN")
    assert Scoring().failed(head, Failure("DL4J-NOTFINITE", "score is NaN", "w")) is None


def test_the_best_model_is_needed_to_the_end():
    *_, last = heads(VALIDATED, Scoring(), [1.0, 2.0, 3.0, 4.0])
    assert last.best.version < last.version - 3
    assert not Keys.is_useless(f"{last.best.model.key}/0", last)
    assert Keys.is_useless(f"model/{last.best.version}/another/0", last)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: EarlyStopping(), "has no condition"),
        (lambda: EarlyStopping(max_epochs=-1), r"early_stopping.max_epochs is -1; it must be"),
        (lambda: EarlyStopping(max_seconds=float("nan")), "early_stopping.max_seconds is nan"),
        (lambda: EarlyStopping(min_improvement=0.1), "epochs_without_improvement too"),
        (lambda: EarlyStopping(best_score=float("inf")), "early_stopping.best_score is inf"),
        (lambda: ValidationConf(fraction=1.0), "validation.fraction is 1.0"),
        (lambda: ValidationConf(fraction=float("nan")), "validation.fraction is nan"),
        (lambda: ValidationConf(fraction=0.1, dataset="iris"), "give one of them"),
        (lambda: ValidationConf(metric="acuracy"), "did you mean 'accuracy'|accuracy"),
        (lambda: ValidationConf(every_rounds=-1), "every_rounds is -1"),
        (
            lambda: Conf(validation=ValidationConf(metric="f1"), early_stopping=EarlyStopping(best_score=1.0)),
            "no f1 is above 1",
        ),
    ],
)
def test_nonsense_is_refused_when_it_is_written(make, said):
    with pytest.raises(ConfError, match=said):
        make()
