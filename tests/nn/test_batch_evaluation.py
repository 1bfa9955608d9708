"""Evaluations of batches merge to the bits of a local evaluation, however the batches were shared out."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dl4jlegacy.datasets import load
from dl4jlegacy.errors import NotFiniteError
from dl4jlegacy.models.model import evaluate_network, with_features_as_labels
from dl4jlegacy.nn import zoo
from dl4jlegacy.nn.batch_evaluation import evaluate_batches, is_classified, join_evaluations, merge_evaluations
from dl4jlegacy.nn.networks import build_network

IRIS = load("iris")


@functools.cache
def network(model="mlp", n_out=3):
    built = build_network(zoo.select(model).build(4, n_out, seed=7))
    built.init()
    return built


@given(st.lists(st.integers(0, 12), max_size=3), st.integers(7, 40))
def test_parts_in_order_give_the_bits_of_the_whole(cuts, batch_size):
    net, examples = network(), IRIS.train
    batches = list(examples.batch_by(batch_size))
    bounds = [0, *sorted(min(cut, len(batches)) for cut in cuts), len(batches)]
    jobs = [
        join_evaluations(list(evaluate_batches(net, batches[a:b], classifies=True, first=a, batch_size=batch_size)))
        for a, b in itertools.pairwise(bounds)
        if a < b
    ]
    whole = evaluate_network(net, examples, IRIS.label_names, batch_size=batch_size)
    merged = merge_evaluations(jobs, IRIS.label_names)
    assert merged.loss.hex() == whole.loss.hex()
    assert merged.classification.to_dict() == whole.classification.to_dict()


def test_the_counts_are_those_of_the_network_itself():
    net = network()
    found = evaluate_network(net, IRIS.test, IRIS.label_names)
    assert found.classification.to_dict() == net.evaluate(IRIS.test, IRIS.label_names).to_dict()
    assert found.loss == pytest.approx(net.score_examples(IRIS.test).mean(), rel=1e-6)


def test_a_network_that_rebuilds_its_input_has_a_loss_only():
    net, examples = network("deep-autoencoder", 4), with_features_as_labels(IRIS.test)
    found = evaluate_network(net, examples, IRIS.label_names)
    assert not is_classified(net.conf, examples) and found.classification is None
    assert found.fields() == {"accuracy": None, "f1": None, "loss": found.loss}


def test_a_model_that_is_not_finite_is_an_error_and_no_score():
    net = build_network(network().conf)
    net.init()
    net.set_params(np.full_like(net.params, np.nan))
    with pytest.raises(NotFiniteError, match="row 0"):
        list(evaluate_batches(net, [IRIS.train.rows(20, 30)], classifies=True, first=2, batch_size=10))
