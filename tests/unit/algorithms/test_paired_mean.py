"""The mean of grouped tensors, on two tensors of three groups with 2, 1 and 3 (or 1, 1 and 1) rows."""

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat.algorithms.paired_mean import PairedMean
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.params import WeightedMean

SETS = ((0, 3), (1,), (2, 4))
GROUPS = {"w": torch.tensor([0, 0, 1, 2, 2, 2]), "b": torch.tensor([0, 1, 2])}
PREVIOUS = {"w": torch.full((6, 2), 100.0), "b": torch.full((3,), -100.0)}


def draw(seed, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = {"w": (6, 2), "b": (3,)}
    return {key: torch.randn(*s, generator=generator, dtype=dtype) for key, s in shapes.items()}


def constant(value):
    return {key: torch.full_like(tensor, value) for key, tensor in PREVIOUS.items()}


def paired(*updates, sets=SETS, previous=PREVIOUS):
    """The mean of (whole tensors, weights, own sets), each sent as its client holds it."""
    mean = PairedMean(GROUPS, len(sets))
    for params, weights, own in updates:
        rows = rows_of(GROUPS, sets, own)
        mean.add(take_rows(params, rows), weights, rows)
    return mean.result(previous)


def equal(left, right):
    """Equal to the last bit, signs of zeros included."""
    return all(torch.equal(left[key].view(torch.int32), right[key].view(torch.int32)) for key in left)


def test_every_group_has_its_own_weights_and_contributors():
    """Group 0: (4 * 1 + 12 * 2) / 16; group 1: the second alone; group 2: (4 * 1 + 12 * 6) / 16."""
    first, second, third = (constant(value) for value in (1.0, 2.0, 6.0))
    found = paired((first, [4, 0, 4], SETS), (second, [12, 7, 0], SETS), (third, [0, 0, 12], SETS))
    assert found["b"].tolist() == [1.75, 2.0, 4.75]
    assert found["w"].tolist() == [[1.75] * 2] * 2 + [[2.0] * 2] + [[4.75] * 2] * 3


def test_groups_are_paired_by_their_classes_not_by_their_place():
    """A trimmed client that has group 2 in front of group 0."""
    params = {"w": torch.arange(12.0).view(6, 2), "b": torch.tensor([10.0, 11.0, 12.0])}
    rows = rows_of(GROUPS, SETS, ((2, 4), (0, 3)))
    sent = take_rows(params, rows)
    assert sent["w"].tolist() == [[6, 7], [8, 9], [10, 11], [0, 1], [2, 3]]
    assert sent["b"].tolist() == [12, 10]
    mean = PairedMean(GROUPS, 3)
    mean.add(sent, [1, 0, 1], rows)
    mean.add(constant(0.0), [3, 3, 3], None)
    found = mean.result(PREVIOUS)
    assert found["b"].tolist() == [2.5, 0.0, 3.0]
    assert found["w"].tolist() == [[0, 0.25], [0.5, 0.75], [0, 0], [1.5, 1.75], [2, 2.25], [2.5, 2.75]]


def test_a_group_without_a_contributor_keeps_its_value():
    found = paired((constant(1.0), [2, 0, 0], SETS), (constant(4.0), [1, 0, 0], (SETS[0],)))
    assert found["b"].tolist() == [2.0, -100.0, -100.0]
    assert found["w"].tolist() == [[2.0] * 2] * 2 + [[100.0] * 2] * 4


@pytest.mark.parametrize("updates", [[], [(constant(1.0), [0, 0, 0], SETS)]])
def test_nobody_changes_nothing(updates):
    assert equal(paired(*updates), PREVIOUS)


def test_an_update_of_weight_zero_changes_nothing():
    kept = [(draw(0), [2, 1, 1], SETS), (draw(1), [1, 1, 3], SETS)]
    silent = (draw(2), [0, 0, 0], SETS)
    assert equal(paired(silent, *kept, silent), paired(*kept))


def test_without_grouped_tensors_there_is_nothing_to_do():
    mean = PairedMean({}, 3)
    mean.add({"other": torch.ones(2)}, [1, 2, 3], None)
    assert mean.result({"other": torch.zeros(2)}) == {}


def test_one_contributor_comes_back_bit_for_bit():
    params = draw(0) | {"b": torch.tensor([0.0, -0.0, 1e-42])}
    assert equal(paired((params, [0.3, 7, 11], SETS)), params)
    assert equal(paired((params, [3, 3, 3], SETS)), params)
    assert equal(paired((params, [3, 3, 3], SETS[::-1])), params)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=6).filter(any))
def test_equal_contributors_give_the_weighted_mean_bit_for_bit(weights):
    updates = [draw(seed) for seed in range(len(weights))]
    updates[0]["b"] = torch.tensor([-0.0, 0.0, 1.0])
    mean = WeightedMean()
    for params, weight in zip(updates, weights, strict=True):
        mean.add(params, weight)
    found = paired(*((params, [w] * 3, SETS) for params, w in zip(updates, weights, strict=True)))
    assert equal(found, mean.result())


CLIENTS = st.lists(
    st.tuples(
        st.integers(0, 99),
        st.lists(st.integers(0, 50), min_size=3, max_size=3),
        st.permutations(range(3)),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=6,
)


def drawn(clients):
    """Updates of clients with some of the groups in any order, weight 0 for those that they lack."""
    for seed, weights, order, number in clients:
        own = order[:number]
        held = [weight if g in own else 0 for g, weight in enumerate(weights)]
        yield draw(seed), held, tuple(SETS[g] for g in own)


def by_hand(updates):
    """In double precision, row by row."""
    totals = torch.tensor([weights for _, weights, _ in updates], dtype=torch.float64).sum(0)
    result = {}
    for key, groups in GROUPS.items():
        mean = PREVIOUS[key].double().clone()
        for row, g in enumerate(groups.tolist()):
            if totals[g]:
                mean[row] = sum(w[g] * p[key][row].double() for p, w, _ in updates) / totals[g]
        result[key] = mean
    return result


@settings(deadline=None, max_examples=40)
@given(CLIENTS)
def test_any_clients_give_the_mean_by_hand(clients):
    updates = list(drawn(clients))
    found, expected = paired(*updates), by_hand(updates)
    for key in found:
        torch.testing.assert_close(found[key].double(), expected[key], rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(CLIENTS, st.randoms(use_true_random=False))
def test_the_order_of_the_clients_changes_only_rounding(clients, draws: Random):
    updates = list(drawn(clients))
    shuffled = draws.sample(updates, len(updates))
    found, other = paired(*updates), paired(*shuffled)
    for key in found:
        torch.testing.assert_close(found[key], other[key], rtol=1e-5, atol=1e-5)


@settings(deadline=None, max_examples=40)
@given(CLIENTS, st.randoms(use_true_random=False))
def test_the_order_of_a_clients_groups_changes_only_rounding(clients, draws: Random):
    updates = list(drawn(clients))
    permuted = [(params, weights, tuple(draws.sample(own, len(own)))) for params, weights, own in updates]
    found, other = paired(*updates), paired(*permuted)
    # Where all rows stand in order, one kernel adds them with a single rounding.
    for key in found:
        torch.testing.assert_close(found[key], other[key], rtol=1e-6, atol=1e-6)


@given(st.permutations(range(3)))
def test_with_equal_weights_the_order_of_a_clients_groups_changes_nothing(order):
    first, second = (draw(0), [1, 1, 1], SETS), draw(1)
    permuted = tuple(SETS[g] for g in order)
    found = paired(first, (second, [1, 1, 1], permuted))
    assert equal(found, paired(first, (second, [1, 1, 1], SETS)))


def test_double_precision_stays_double():
    updates = [
        (draw(seed, torch.float64), weights, SETS) for seed, weights in ((0, [3, 1, 1]), (1, [1, 3, 7]))
    ]
    previous = {key: tensor.double() for key, tensor in PREVIOUS.items()}
    found, expected = paired(*updates, previous=previous), by_hand(updates)
    for key in found:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-14, atol=1e-14)


def test_half_precision_is_summed_in_float32():
    """256 + 1 is 256 in bfloat16: 300 ones would never get beyond it."""
    updates = [({key: torch.ones_like(t).bfloat16() for key, t in PREVIOUS.items()}, [1, 1, 2], SETS)] * 300
    previous = {key: tensor.bfloat16() for key, tensor in PREVIOUS.items()}
    found = paired(*updates, previous=previous)
    assert all(t.dtype == torch.bfloat16 and torch.equal(t, torch.ones_like(t)) for t in found.values())


def test_nothing_that_goes_in_is_changed():
    updates = [(draw(seed), [1, seed, 2], SETS) for seed in range(3)]
    before = [{key: tensor.clone() for key, tensor in params.items()} for params, _, _ in updates]
    previous = {key: tensor.clone() for key, tensor in PREVIOUS.items()}
    paired(*updates, previous=previous)
    assert all(equal(params, copy) for (params, _, _), copy in zip(updates, before, strict=True))
    assert equal(previous, PREVIOUS)


def test_all_groups_in_order_are_all_rows():
    params = draw(0)
    assert rows_of(GROUPS, SETS, SETS) is None
    assert take_rows(params, None) is params


def test_tensors_without_groups_pass_through():
    rows = rows_of(GROUPS, SETS, (SETS[1],))
    params = draw(0) | {"shared": torch.ones(7)}
    assert take_rows(params, rows)["shared"] is params["shared"]
