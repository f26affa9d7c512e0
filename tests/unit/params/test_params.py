"""Arithmetic on parameters, against numbers worked out by hand."""

import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedfeat.params import (
    Row,
    WeightedMean,
    copy_into,
    rows,
    select,
    snapshot,
    standalone,
    trained_names,
    zeros_of,
)
from fedfeat.tree import num_bytes
from fedfeat.types import Weights


def mean_of(*pairs):
    mean = WeightedMean()
    for params, weight in pairs:
        mean.add(params, weight)
    return mean.result()


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


def test_weighted_mean_by_hand():
    a = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(7)}
    b = {"n": torch.tensor(9), "w": torch.tensor([5.0, -2.0])}
    c = {"w": torch.tensor([0.0, 8.0]), "n": torch.tensor(3)}
    # (1*1 + 2*5 + 1*0) / 4 and (1*2 + 2*(-2) + 1*8) / 4
    result = mean_of((a, 10), (b, 20), (c, 10))
    assert result["w"].tolist() == [2.75, 1.5]
    assert result["n"].item() == 9
    assert list(result) == ["w", "n"]
    assert a["w"].tolist() == [1.0, 2.0]
    assert b["w"].tolist() == [5.0, -2.0]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(width=32), min_size=1, max_size=9),
    st.floats(min_value=1e-6, max_value=1e9),
    st.booleans(),
)
def test_a_single_update_comes_back_bit_for_bit(values, weight, with_empty):
    params = {
        "f": torch.tensor(values),
        "d": torch.tensor(values, dtype=torch.float64) * 0.1,
        "h": torch.tensor(values).to(torch.bfloat16),
        "n": torch.tensor([3, -4]),
        "m": torch.tensor([True, False]),
    }
    mean = WeightedMean()
    if with_empty:
        mean.add({"f": torch.full((len(values),), torch.nan)}, 0)
    mean.add(params, weight)
    for _ in range(2):
        result = mean.result()
        assert {k: bits(v) for k, v in result.items()} == {k: bits(v) for k, v in params.items()}
        assert [v.dtype for v in result.values()] == [v.dtype for v in params.values()]
        result["f"].zero_()  # a result is the caller's


def test_equal_weights_are_the_plain_mean_and_nothing_depends_on_looking():
    generator = torch.Generator().manual_seed(0)
    updates = [{"w": torch.randn(50, generator=generator)} for _ in range(7)]
    total = updates[0]["w"].clone()
    for update in updates[1:]:
        total += update["w"]
    assert torch.equal(mean_of(*((u, 600) for u in updates))["w"], total / 7)
    looked = WeightedMean()
    for weight, update in enumerate(updates, start=1):
        looked.add(update, weight)
        looked.result()
    assert torch.equal(looked.result()["w"], mean_of(*((u, w) for w, u in enumerate(updates, start=1)))["w"])


def test_mean_lies_close_to_double_precision():
    generator = torch.Generator().manual_seed(1)
    updates = [torch.randn(200, generator=generator) for _ in range(30)]
    weights = list(range(1, 31))
    exact = sum(w * u.double() for w, u in zip(weights, updates, strict=True)) / sum(weights)
    result = mean_of(*(({"w": u}, w) for w, u in zip(weights, updates, strict=True)))["w"]
    torch.testing.assert_close(result.double(), exact, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_neither_stalls_nor_overflows(dtype):
    ones = {"w": torch.full((3,), 3.0, dtype=dtype)}
    result = mean_of(*((ones, 600) for _ in range(3000)))["w"]
    assert result.dtype == dtype
    assert result.tolist() == [3.0, 3.0, 3.0]


def test_the_stream_may_be_overwritten_after_it_was_added():
    buffer = {"w": torch.tensor([2.0]), "n": torch.tensor(1)}
    mean = WeightedMean()
    mean.add(buffer, 1)
    buffer["w"].fill_(4.0)
    buffer["n"].fill_(5)
    mean.add(buffer, 1)
    buffer["n"].fill_(100)
    assert mean.result()["w"].item() == 3.0
    assert mean.result()["n"].item() == 5


@pytest.mark.parametrize("weight", [-1, float("nan"), float("inf")])
def test_bad_weights_are_refused(weight):
    with pytest.raises(ValueError, match="weight must be finite and at least 0, but it is"):
        WeightedMean().add({"w": torch.ones(1)}, weight)


def test_what_does_not_fit_is_refused_and_changes_nothing():
    mean = WeightedMean()
    with pytest.raises(ValueError, match="at least one update of positive weight"):
        mean.result()
    mean.add({"w": torch.ones(2)}, 1)
    with pytest.raises(ValueError, match=r"equal keys, but v is in only one"):
        mean.add({"w": torch.ones(2), "v": torch.ones(1)}, 1)
    with pytest.raises(ValueError, match=r"w must have the shape \(2,\), but it is \(1,\)\."):
        mean.add({"w": torch.ones(1)}, 1)
    assert mean.result()["w"].tolist() == [1.0, 1.0]


def test_empty_parameters_have_an_empty_mean():
    assert mean_of(({}, 1), ({}, 2)) == {}


def test_select():
    params = {"a": torch.ones(1), "b": torch.zeros(1)}
    assert list(select(params, iter(["b", "a"]))) == ["b", "a"]
    assert select(params, ["a"])["a"] is params["a"]
    with pytest.raises(ValueError, match=r"there is no c\."):
        select(params, ["a", "c"])


def network():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).to(memory_format=torch.channels_last)


def test_snapshot_and_copy_into_are_inverse():
    torch.manual_seed(0)
    source, target = network(), network()
    source(torch.randn(4, 1, 5, 5))  # (B, C, H, W); moves the running statistics
    taken = snapshot(source)
    pointers = [parameter.data_ptr() for parameter in target.parameters()]
    copy_into(target, taken)
    for key, tensor in source.state_dict().items():
        assert torch.equal(tensor, target.state_dict()[key]), key
    assert [parameter.data_ptr() for parameter in target.parameters()] == pointers
    assert all(parameter.requires_grad for parameter in target.parameters())
    assert not any(tensor.requires_grad for tensor in taken.values())
    with torch.no_grad():
        source[0].weight.zero_()
    assert taken["0.weight"].abs().sum() > 0


def test_copy_into_a_part_leaves_the_rest():
    model = network()
    before = snapshot(model)
    copy_into(model, {"0.bias": torch.tensor([5.0, 6.0], dtype=torch.float64)})
    after = snapshot(model)
    assert after["0.bias"].tolist() == [5.0, 6.0]
    assert all(torch.equal(before[key], after[key]) for key in before if key != "0.bias")
    copy_into(model, {})


def test_copy_into_refuses_before_it_changes_anything():
    model = network()
    before = snapshot(model)
    with pytest.raises(ValueError, match="there is no head"):
        copy_into(model, {"0.bias": torch.ones(2), "head": torch.ones(1)})
    with pytest.raises(ValueError, match=r"1.weight must have the shape \(2,\), but it is \(3,\)\."):
        copy_into(model, {"0.bias": torch.ones(2), "1.weight": torch.ones(3)})
    assert all(torch.equal(before[key], value) for key, value in snapshot(model).items())
    with pytest.raises(ValueError, match="there is no x"):
        snapshot(model, ["x"])
    assert list(snapshot(model, ["1.bias", "0.bias"])) == ["1.bias", "0.bias"]


def test_standalone_copies_only_what_shares_memory():
    whole, stack = torch.ones(3), torch.arange(6.0).reshape(2, 3)
    result = standalone({"whole": whole, "again": whole, "row": stack[1], "turned": stack.t()})
    assert result["whole"].data_ptr() == whole.data_ptr()
    assert result["again"].data_ptr() != whole.data_ptr()
    assert result["row"].untyped_storage().nbytes() == 12
    assert result["row"].tolist() == [3.0, 4.0, 5.0]
    assert result["turned"].is_contiguous()
    assert result["turned"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_what_trains_has_names():
    module = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
    module[0].bias.requires_grad_(False)
    assert trained_names(module) == ["0.weight", "1.weight", "1.bias"]
    assert trained_names(module, among={"1.bias", "0.weight", "0.bias"}) == ["0.weight", "1.bias"]


def test_zeros_in_the_form_of_others():
    params = {"a": torch.ones(2, 3, dtype=torch.float64), "n": torch.tensor(7)}
    found = zeros_of(params)
    assert {key: (tensor.shape, tensor.dtype) for key, tensor in found.items()} == {
        key: (tensor.shape, tensor.dtype) for key, tensor in params.items()
    }
    assert not any(tensor.any() for tensor in found.values())
    assert list(zeros_of(params, ["n"])) == ["n"]
    with pytest.raises(ValueError, match="there is no b"):
        zeros_of(params, ["b"])


def stacked_updates(count, seed):
    """Stacks of some models, float, half and counting, with their rows."""
    generator = torch.Generator().manual_seed(seed)
    stack = {
        "w": torch.randn(count, 3, 2, generator=generator, dtype=torch.float64),
        "s": torch.randn(count, generator=generator, dtype=torch.float64),
        "half": torch.randn(count, 4, generator=generator).half(),
        "steps": torch.randint(9, (count,), generator=generator),
    }
    return rows(stack)


@pytest.mark.parametrize("count", [4, 40])
def test_rows_of_stacks_have_the_mean_of_their_tensors(count):
    """Two stacks in turns, one of whose rows comes twice, is left out or weighs nothing, beside one that is none.

    Few rows are summed one by one, many in one product.
    """
    one, other = stacked_updates(count, 0), stacked_updates(3, 1)
    one[3]["w"].fill_(torch.nan)
    stream = [
        (one[1], 3),
        (one[0], 2),
        (one[2], 0),
        *[(row, place) for place, row in enumerate(one[4:], start=1)],
        (other[0], 5),
        (dict(other[1]), 1),
        (other[2], 4),
        (other[2], 1),
    ]
    found, expected = WeightedMean(), WeightedMean()
    for row, weight in stream:
        found.add(row, weight)
        expected.add(dict(row), weight)
    for key, mean in expected.result().items():
        torch.testing.assert_close(found.result()[key], mean, rtol=0, atol=1e-3 if key == "half" else 1e-13)
    assert found.result()["w"].isfinite().all()


def test_a_choice_of_a_row_is_one():
    (row, _) = stacked_updates(2, 0)
    chosen = select(row, ["s", "w"])
    assert isinstance(chosen, Row)
    assert (chosen.stack, chosen.index) == (row.stack, 0)
    assert list(chosen) == ["s", "w"]
    assert num_bytes(Weights(chosen)) == num_bytes(dict(chosen)) == 8 + 6 * 8


def negated(params):
    params["w"] = -params["w"]


def without(params):
    del params["s"]


@pytest.mark.parametrize(
    "change",
    [
        negated,
        without,
        lambda params: params.update(w=params["w"] * 2),
        lambda params: params.__ior__({"w": params["w"] * 2}),
        lambda params: params.setdefault("new", torch.ones(3)),
        lambda params: params.pop("half"),
        lambda params: params.popitem(),
    ],
)
@pytest.mark.parametrize("count", [4, 40])
def test_a_row_that_is_changed_counts_as_it_is(change, count):
    """As a method of one's own quantises or clips what it sends; the others of its stack stay as they are."""
    found, expected, plain = WeightedMean(), WeightedMean(), stacked_updates(count, 0)
    before = [dict(row) for row in stacked_updates(count, 0)]
    for row, same in zip(plain, before, strict=True):
        change(row)
        change(same)
        assert num_bytes(Weights(row)) == num_bytes(Weights(same))
        assert not isinstance(select(row, ["w"]), Row)
        found.add(row, 1.0)
        expected.add(same, 1.0)
    for key, mean in expected.result().items():
        torch.testing.assert_close(found.result()[key], mean, rtol=0, atol=1e-3 if key == "half" else 1e-13)


def test_a_row_survives_the_way_between_processes():
    (row, _) = stacked_updates(2, 0)
    copied = pickle.loads(pickle.dumps(row))
    assert copied.stack is not None
    assert all(torch.equal(copied[key], row[key]) for key in row)
    row.clear()
    assert (row.stack, row.num_bytes) == (None, None)
