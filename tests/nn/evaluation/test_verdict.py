"""The verdict on a model: each sentence from the counts that cause it, and none of them by chance."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, f1_score

from dl4jlegacy.nn.evaluation.verdict import (
    Baseline,
    ClassFacts,
    Course,
    Facts,
    NumberFacts,
    association,
    course_of,
    gain_over,
    judge,
    macro_f1,
)

ENOUGH = Course(1.2, 0.4, is_improving=False, versions=100)
NUMBER = NumberFacts(
    name="y",
    count=101,
    mse=1.0,
    mae=0.8,
    baseline_mse=4.0,
    baseline_mae=1.6,
    correlation=0.9,
    spread=0.9,
    output_mean=6.25,
)


def classes(*rows: list[int], names: str = "abcdef", trained: list[int] | None = None) -> Facts:
    """Facts of a classifier, with the baseline of what is the commonest class in training."""
    confusion = np.array(rows)
    known = confusion.sum(axis=1) * 4 if trained is None else np.array(trained)
    found = ClassFacts(confusion, tuple(names[: len(rows)]), known)
    always = np.zeros_like(confusion)
    always[:, found.commonest] = confusion.sum(axis=1)
    accuracy = always.trace() / always.sum()
    baseline = Baseline(answer=f"always {names[found.commonest]!r}", accuracy=accuracy, macro_f1=macro_f1(always))
    return Facts(classes=found, baseline=baseline)


def numbers(course: Course | None = None, **changes: float) -> Facts:
    fields = {name: getattr(NUMBER, name) for name in NUMBER.__struct_fields__} | changes
    baseline = Baseline(answer="always the mean, 5", mae=fields["baseline_mae"])
    return Facts(numbers=(NumberFacts(**fields),), baseline=baseline, course=course, has_had_enough=True)


def test_macro_f1_counts_classes_that_are_never_found_as_scikit_learn_does() -> None:
    rng = np.random.default_rng(1)
    for classes_of_answers in (1, 2, 5):
        actual, answers = rng.integers(0, 5, 60), rng.integers(0, classes_of_answers, 60)
        counts = confusion_matrix(actual, answers, labels=range(7))
        assert macro_f1(counts) == pytest.approx(f1_score(actual, answers, average="macro"))
    assert macro_f1(np.zeros((2, 2), int)) == 0


def test_an_association_is_measured_in_deviations_of_shuffled_answers() -> None:
    rng = np.random.default_rng(2)
    actual = rng.choice(3, 90, p=[0.6, 0.3, 0.1])
    answers = np.where(rng.random(90) < 0.3, actual, rng.choice(3, 90, p=[0.5, 0.2, 0.3]))
    hits = [(rng.permutation(answers) == actual).sum() for _ in range(20_000)]
    expected = ((answers == actual).sum() - np.mean(hits)) / np.std(hits)
    assert association(confusion_matrix(actual, answers)) == pytest.approx(expected, rel=0.03)


def test_answers_at_random_count_as_learned_about_once_in_a_thousand() -> None:
    rng = np.random.default_rng(3)
    learned = sum(
        bool(judge(classes(*confusion_matrix(rng.integers(0, 3, 100), rng.integers(0, 3, 100)).tolist())).learned)
        for _ in range(500)
    )
    assert learned <= 3


@pytest.mark.parametrize(
    ("rows", "learned"),
    [
        (([10, 0], [0, 10]), True),
        (([30, 30], [30, 30]), False),
        (([0, 30], [30, 0]), False),  # no answer is right: nobody can use that
        (([250, 10], [29, 18]), True),  # a rare class, some of it found
        (([40, 0], [30, 0]), False),
        (([4, 0], [0, 4]), None),  # too few to tell
        (([40, 0], [0, 0]), None),  # one class alone is held out
    ],
)
def test_a_classifier_has_learned_if_its_answers_follow_the_classes(rows: tuple[list[int], ...], learned) -> None:
    assert judge(classes(*rows)).learned is learned


def test_one_answer_for_all_is_said_with_its_name() -> None:
    found = judge(classes([30, 0, 0], [30, 0, 0], [31, 0, 0]))
    assert found.is_constant and found.learned is False
    assert found.findings[:2] == (
        "always answers 'a'",
        "no better than always 'c' by accuracy (0.3297, against 0.3407)",
    )
    assert judge(classes([30, 0], [1, 0])).findings[0] == "always answers 'a'"
    assert not judge(classes([30, 0], [0, 0])).is_constant


@pytest.mark.parametrize(
    ("rows", "is_said"),
    [
        (([60, 0], [40, 0]), False),  # it is the baseline: said as the answer for all
        (([55, 5], [35, 5]), True),
        (([59, 1], [38, 2]), True),  # a hit more than the baseline
        (([58, 2], [30, 10]), False),
        (([900, 52], [28, 20]), True),  # below the commonest class, but by macro F1
        (([9890, 10], [50, 50]), False),  # half a point, beyond chance
    ],
)
def test_who_is_no_better_than_the_commonest_class_is_told_so(rows: tuple[list[int], ...], is_said: bool) -> None:
    said = [each for each in judge(classes(*rows)).findings if "no better" in each]
    assert bool(said) == is_said
    if rows[0][0] == 900:
        assert said == [
            "no better than always 'a' by accuracy (0.9200, against 0.9520); "
            "better by macro f1 (0.6454, against 0.4877)"
        ]


def test_the_gain_over_the_commonest_class_is_that_of_paired_answers() -> None:
    confusion = np.array([[40, 5, 5], [10, 12, 2], [3, 1, 8]])
    hits = np.repeat([0, 1, -1], [40, 20, 10])  # 12 + 8 won, 5 + 5 lost, the rest as before
    assert gain_over(confusion, 0) == pytest.approx(hits.sum() / np.sqrt((hits**2).sum()))


def test_classes_that_are_never_found_are_named_with_the_most_examples_first() -> None:
    facts = classes([60, 2, 0, 0, 0], [3, 50, 0, 0, 0], [9, 0, 0, 0, 0], [1, 0, 0, 0, 0], [20, 0, 0, 0, 0])
    assert "never finds 'e' (0 of 20), 'c' (0 of 9)" in judge(facts).findings
    many = judge(classes(*([[20, 0, 0, 0, 0, 0]] + [[0, 20 + i, 0, 0, 0, 0] for i in range(5)])))
    assert "never finds 'f' (0 of 24), 'e' (0 of 23), 'd' (0 of 22) and 1 more class" in many.findings


def test_class_weights_are_suggested_where_a_rare_class_is_missed_and_none_were_given() -> None:
    rare = classes([900, 0], [30, 0])
    weights = "--class-weights balanced makes rare classes count for more"
    assert weights not in judge(rare).findings
    assert weights in judge(dataclasses.replace(rare, can_weigh=True)).findings
    equal = dataclasses.replace(classes([40, 0, 0], [0, 40, 0], [20, 20, 0]), can_weigh=True)
    assert weights not in judge(equal).findings, "the class that is missed is as frequent as the others"


def test_a_score_that_has_not_left_its_start_is_no_learning() -> None:
    flat = Course(1.5, 1.07, is_improving=False, versions=100)  # ln 3 is 1.0986
    facts = dataclasses.replace(classes([10, 10, 10], [10, 10, 10], [10, 10, 10]), course=flat)
    assert "has not learned (score as at the start: 1.07)" in judge(facts).findings
    sums = dataclasses.replace(facts, steps=10.0, course=Course(15, 10.7, is_improving=False, versions=100))
    assert "has not learned (score as at the start: 10.7)" in judge(sums).findings
    by_heart = dataclasses.replace(facts, course=Course(1.1, 0.1, is_improving=False, versions=9))
    assert judge(by_heart).findings[-1] == (
        "has not learned what holds for held-out examples (training score 1.1 at the start, 0.1 at the end)"
    )
    assert judge(dataclasses.replace(facts, course=None)).findings[-1] == "has not learned"


def test_answers_of_a_network_that_has_not_moved_are_not_learned() -> None:
    flat = Course(0.70, 0.695, is_improving=False, versions=100)
    drawn = dataclasses.replace(classes([30, 5], [5, 30]), course=flat, loss=0.69)  # ln 2 is 0.693
    assert judge(drawn).learned is False and judge(drawn).findings == (
        "has not learned (score as at the start: 0.695)",
    )
    assert judge(dataclasses.replace(drawn, loss=0.4)).learned is True, "it was trained before"
    assert judge(dataclasses.replace(drawn, course=None)).learned is True
    assert judge(numbers(flat, mse=4.0)).learned is False and judge(numbers(flat)).learned is True


def test_the_course_compares_the_last_fifth_with_the_one_before() -> None:
    assert course_of([]) is None
    falling = course_of([1 / (1 + step) for step in range(20)])
    assert falling is not None and falling.is_improving and falling.start == 1.0
    assert falling.end == pytest.approx(np.mean([1 / 17, 1 / 18, 1 / 19, 1 / 20]))
    settled = course_of([1.0] * 10 + [0.5 - 0.001 * step for step in range(10)])
    assert settled is not None and not settled.is_improving
    rng = np.random.default_rng(4)
    noisy = [course_of(1 + 0.2 * rng.normal(size=20)) for _ in range(400)]
    assert sum(each is not None and each.is_improving for each in noisy) < 20
    few = [course_of(scores) for scores in ([0.7, 0.6], [0.7, 0.68], [0.7])]
    assert [each is not None and each.is_improving for each in few] == [True, False, False]


def test_a_score_that_still_falls_asks_for_more_epochs_unless_the_model_learns_by_heart() -> None:
    facts = dataclasses.replace(classes([30, 5], [5, 30]), course=Course(1, 0.5, is_improving=True, versions=50))
    assert judge(dataclasses.replace(facts, loss=0.5)).findings == ("still improving: more epochs",)
    assert judge(dataclasses.replace(facts, loss=0.9)).findings == ()


@pytest.mark.parametrize(
    ("changes", "fails"),
    [
        ({}, True),
        ({"has_pattern": False}, False),  # data without a pattern
        ({"has_had_enough": False}, False),
        ({"course": Course(1.2, 1.0, is_improving=True, versions=100)}, False),
        ({"course": None}, False),  # an evaluation
    ],
)
def test_one_answer_for_data_with_a_pattern_is_a_collapse_after_a_whole_training(changes: dict, fails: bool) -> None:
    facts = dataclasses.replace(
        classes([30, 0], [29, 0]),
        has_pattern=True,
        has_had_enough=True,
        course=Course(0.7, 0.69, is_improving=False, versions=100),
    )
    found = judge(dataclasses.replace(facts, **changes))
    assert found.failure == (
        "the run collapsed: it gives one answer for everything, although the data have a pattern" if fails else ""
    )
    assert ("try another --learning-rate, --updater or --seed" in found.findings) == fails


def test_a_score_that_rises_is_a_divergence_unless_the_model_has_learned() -> None:
    risen = Course(0.8, 7e9, is_improving=False, versions=20)
    found = judge(numbers(risen, mse=1e20, mae=1e10, correlation=0.0))
    assert found.failure == "the run diverged: its score was 0.8 at the start and is 7e+09 at the end"
    assert "the score has risen, from 0.8 at the start to 7e+09" in found.findings
    assert judge(numbers(risen)).failure == ""
    assert judge(Facts(course=risen, has_had_enough=True)).failure.startswith("the run diverged")


def test_numbers_are_compared_with_the_mean() -> None:
    assert judge(numbers(ENOUGH)).learned is True and judge(numbers(ENOUGH)).findings == ()
    worse = judge(numbers(ENOUGH, mse=4.1, mae=1.7, correlation=0.1))
    assert worse.learned is False
    assert worse.findings[0] == "no better than always the mean, 5 (mae 1.7, against 1.6)"
    assert "no better" not in judge(numbers(ENOUGH, mse=4.1)).findings, "better by absolute errors"
    constant = judge(numbers(ENOUGH, mse=4.0, mae=1.6, correlation=0.0, spread=0.001))
    assert constant.is_constant and constant.findings[0] == "always answers about 6.25"
    assert judge(numbers(ENOUGH, count=8)).learned is None


def test_labels_that_do_not_exclude_each_other_are_judged_one_by_one() -> None:
    found = [ClassFacts(np.array(rows), (name,), np.sum(rows, axis=1)) for name, rows in LABELS.items()]
    verdict = judge(Facts(labels=tuple(found)))
    assert verdict.learned is True and verdict.findings == ("never finds 'rare' (0 of 12)",)
    none = judge(Facts(labels=(found[1],)))
    assert none.learned is False and none.is_constant


LABELS = {"frequent": [[40, 10], [10, 40]], "rare": [[88, 0], [12, 0]]}


def test_without_labels_the_score_has_to_fall() -> None:
    assert judge(Facts(course=ENOUGH)).learned is True
    flat = judge(Facts(course=Course(1.0, 0.99, is_improving=False, versions=20)))
    assert flat.learned is False and flat.findings == ("has not learned (score as at the start: 0.99)",)
    bound = [Course(-10.0, end, is_improving=False, versions=20) for end in (-9.8, -12.0)]
    assert [judge(Facts(course=course)).learned for course in bound] == [False, True]
    assert judge(Facts()).learned is None
