import math

import numpy as np
import pytest
from harness import make_data

from fedfeat.clients.tasks import Scores
from fedfeat.data import transforms
from fedfeat.data.federated import FederatedData
from fedfeat.data.partition.parts import IndexTestParts, Parts
from fedfeat.rounds.evaluation import (
    evaluate_further,
    evaluate_global,
    summarise_clients,
    summarise_observed,
    turn_metrics,
    weighted_mean,
)


def test_weighted_mean():
    assert weighted_mean(np.array([1.0, 2.0, 4.0])) == pytest.approx(7 / 3)
    assert weighted_mean(np.array([1.0, 2.0, 4.0]), np.array([3, 5, 8])) == 45 / 16


def test_a_mean_hides_nothing_that_is_not_finite():
    values = np.array([1.0, np.nan, 4.0])
    assert np.isnan(weighted_mean(values))
    assert np.isnan(weighted_mean(values, np.array([3, 5, 8])))
    assert np.isinf(weighted_mean(np.array([1.0, np.inf])))
    found = summarise_clients("global/client_acc", dict(enumerate(values)), np.array([3, 5, 8]))
    assert all(np.isnan(value) for value in found.values())
    assert all(np.isnan(value) for value in summarise_observed({"fusion": tuple(values)}).values())
    turns = {k: {"train/loss": loss, "examples": 4.0} for k, loss in enumerate(values)}
    assert np.isnan(turn_metrics(turns)["train/loss"])


def test_clients_are_summed_up_under_the_names_of_the_contract():
    """Client 2 has no test part; client 3 weighs as much as the two others together."""
    found = summarise_clients("personal/acc", {0: 0.5, 1: 1.0, 3: 0.0}, np.array([10, 20, 99, 30]))
    assert found == pytest.approx(
        {
            "personal/acc_mean": 0.5,
            "personal/acc_weighted": (5 + 20) / 60,
            "personal/acc_std": (1 / 6) ** 0.5,
            "personal/acc_worst": 0.0,
            "personal/acc_p10": 0.1,  # a fifth of the way from 0 to .5
        }
    )
    assert summarise_clients("personal/acc", {}, np.array([1])) == {}
    # Who has no training examples weighs nothing; of such clients alone it is the plain mean.
    alone = summarise_clients("personal/acc", {1: 0.5, 2: 1.0}, np.array([9, 0, 0]))
    assert alone["personal/acc_weighted"] == 0.75


class Fixed:
    """Scores the first half of the six test examples as right, with losses 0 to 5."""

    def score(self, payload, indices=None, client_id=None):
        chosen = np.arange(6) if indices is None else indices
        return Scores((chosen < 3).astype(float), chosen.astype(float))


def test_the_global_model_on_all_and_on_every_client():
    data = make_data()
    metrics, scores = evaluate_global(Fixed(), data, None, np.array([3, 5, 8]))
    assert metrics["global/acc"] == 0.5
    assert metrics["global/loss"] == 2.5
    assert metrics["global/client_acc_worst"] == 0.5
    assert scores == {k: {"own/acc": 0.5, "own/loss": 2.5} for k in range(3)}


def test_a_model_of_pooled_data_is_scored_on_the_clients_test_parts():
    metrics, scores = evaluate_global(Fixed(), make_data().pooled(), None, np.array([16]))
    assert len(scores) == 3
    assert metrics["global/client_acc_weighted"] == 0.5


class OneRight(Fixed):
    """Scores the first of the six test examples alone as right."""

    def score(self, payload, indices=None, client_id=None):
        chosen = np.arange(6) if indices is None else indices
        return Scores((chosen < 1).astype(float), chosen.astype(float))


def parts_of_the_test_set():
    """Clients test on 1, 2 and 3 of the six test examples."""
    data = make_data()
    parts = IndexTestParts(Parts(np.arange(6), np.array([0, 1, 3, 6])))
    return FederatedData(data.dataset, data.split._replace(test=parts), transforms.none())


@pytest.mark.parametrize(
    ("pooled", "num_examples", "weights"),
    [(False, np.array([3, 5, 8]), [3, 5, 8]), (True, np.array([16]), [1, 2, 3])],
    ids=["training examples of each", "one client trains on all"],
)
def test_clients_weigh_by_training_examples_or_where_data_are_pooled_by_test_examples(
    pooled, num_examples, weights
):
    data = parts_of_the_test_set()
    data = data.pooled() if pooled else data
    metrics, scores = evaluate_global(OneRight(), data, None, num_examples)
    assert {k: one["own/acc"] for k, one in scores.items()} == {0: 1.0, 1: 0.0, 2: 0.0}
    assert metrics["global/client_acc_mean"] == pytest.approx(1 / 3)
    assert metrics["global/client_acc_weighted"] == pytest.approx(weights[0] / sum(weights))


def test_a_client_without_test_examples_is_in_no_mean():
    data = make_data()
    parts = IndexTestParts(Parts(np.arange(6), np.array([0, 2, 2, 6])))
    data = FederatedData(data.dataset, data.split._replace(test=parts), transforms.none())
    metrics, scores = evaluate_global(OneRight(), data, None, np.array([3, 5, 8]))
    assert scores == {0: {"own/acc": 0.5, "own/loss": 0.5}, 2: {"own/acc": 0.0, "own/loss": 3.5}}
    found = {name: value for name, value in metrics.items() if name.startswith("global/client_acc")}
    assert all(map(math.isfinite, found.values()))
    assert (found["global/client_acc_mean"], found["global/client_acc_worst"]) == (0.25, 0.0)
    assert found["global/client_acc_weighted"] == pytest.approx(0.5 * 3 / (3 + 8))


def test_further_models_are_scored_under_their_names():
    assert evaluate_further(Fixed(), make_data(), {}, np.array([3, 5, 8])) == {}
    found = evaluate_further(Fixed(), make_data(), {"one": None, "two": None}, np.array([3, 5, 8]))
    assert found == {
        name: value
        for one in ("one", "two")
        for name, value in ((f"global/{one}_acc", 0.5), (f"global/{one}_loss", 2.5))
    }
