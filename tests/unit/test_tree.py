"""Trees: apart and together again, counted, hashed, checked."""

import dataclasses
import json
from collections import OrderedDict
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfeat import tree
from fedfeat.errors import CheckpointError
from fedfeat.runs.records import ClientRow
from fedfeat.types import Update

HERE = ("fedfeat", __name__.partition(".")[0])


class Pair(NamedTuple):
    left: torch.Tensor
    right: dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Box:
    items: list
    twice: int = dataclasses.field(init=False, default=2)


def example():
    return {
        "pair": Pair(torch.tensor([1.5, -0.0]), {"b/c": torch.arange(3), "a": torch.tensor(True)}),
        3: (None, True, 7, 0.1, "x", float("inf")),
        "box": Box([torch.zeros(0, 2), torch.tensor([1.0, 3.0], dtype=torch.bfloat16)]),
    }


def same(left, right):
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if dataclasses.is_dataclass(left):
        return type(left) is type(right) and same(left.items, right.items)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def test_flatten_and_unflatten_through_json():
    skeleton, named = tree.flatten(example())
    paths = ["pair/left", "pair/right/b/c", "pair/right/a", "box/items/0", "box/items/1"]
    assert list(named) == [f"{number:05d}/{path}" for number, path in enumerate(paths)]
    back = tree.unflatten(json.loads(json.dumps(skeleton)), named, HERE)
    assert same(example(), back)
    assert back["box"].twice == 2


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
trees = st.recursive(
    scalars | st.lists(st.floats(width=32), max_size=3).map(torch.tensor),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(trees)
def test_any_tree_survives(value):
    skeleton, named = tree.flatten(value)
    back = tree.unflatten(json.loads(json.dumps(skeleton)), named)
    assert tree.sha256(back) == tree.sha256(value)
    assert [t.data_ptr() for t in tree.tensors(back)] == [t.data_ptr() for t in tree.tensors(value)]


def test_tensors_come_in_the_order_of_insertion():
    a, b = torch.tensor(1.0), torch.tensor(2.0)
    assert [t.item() for t in tree.tensors(OrderedDict(z=a, y=(b, {"x": a})))] == [1.0, 2.0, 1.0]


def test_records_of_the_package_are_trusted():
    value = [Update(3, 5, {"w": torch.ones(2)}, None, {"train/loss": 0.5}), ClientRow(1, 2, global_acc=0.25)]
    update, row = tree.unflatten(*tree.flatten(value))
    assert isinstance(update, Update)
    assert update.payload["w"].tolist() == [1.0, 1.0]
    assert row == ClientRow(1, 2, global_acc=0.25)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("os:system", "must come from fedfeat"),
        ("fedfeat_evil:Update", "must come from fedfeat"),
        ("fedfeat.types:Gone", "cannot be imported"),
        ("fedfeat.gone:Update", "cannot be imported"),
        ("fedfeat.seeding:derive_seed", "must be a named tuple or a data class"),
        ("fedfeat.types:NamedTuple", "must be a named tuple or a data class"),
        ("fedfeat.errors:UserError", "must be a named tuple or a data class"),
        ("fedfeat.types:Update", "has changed since it was saved"),
    ],
)
def test_other_classes_are_refused(name, reason):
    with pytest.raises(CheckpointError, match=reason):
        tree.unflatten({"record": [name, [["unknown", 1]]]}, {})


def test_a_missing_tensor_is_refused():
    with pytest.raises(CheckpointError, match=r"00000/a is named by the skeleton but is not stored\."):
        tree.unflatten(tree.flatten({"a": torch.ones(1)})[0], {})


@pytest.mark.parametrize("value", [{"a": [object()]}, {"a": [{1}]}])
def test_unknown_kinds_are_refused_by_their_path(value):
    with pytest.raises(TypeError, match=r"A tree cannot hold a \w+ \(at /a/0\)\."):
        tree.flatten(value)
    with pytest.raises(TypeError, match="cannot have a tuple as a key"):
        tree.flatten({(1, 2): 0})


def test_num_bytes_counts_elements_times_size():
    # left 2 x 4, b/c 3 x 8, a 1 x 1, the empty one 0, bfloat16 2 x 2
    assert tree.num_bytes(example()) == 8 + 24 + 1 + 0 + 4
    assert tree.num_bytes([1, "x", None]) == 0


class Sent(NamedTuple):
    """A payload."""

    params: dict[str, torch.Tensor]
    rate: float = 0.5


def test_identical_trees_hold_the_same_tensors_at_the_same_places():
    a, b = torch.ones(2), torch.ones(2)
    payload = Sent({"a": a, "b": b})
    for same in (payload, Sent(payload.params), Sent({"b": b, "a": a}), Sent({"a": a, "b": b}, 0.5)):
        assert tree.identical(payload, same)
    copied = Sent({"a": a, "b": b.clone()})
    others = [
        copied,
        Sent({"a": b, "b": a}),
        Sent({"a": a}),
        Sent({"a": a, "c": b}),
        Sent(payload.params, 0.25),
    ]
    for other in [*others, ({"a": a, "b": b}, 0.5), None]:
        assert not tree.identical(payload, other)
    assert not tree.identical([a], [a, b])
    assert not tree.identical([1], [True])


def test_a_byte_counter_counts_every_tree_but_looks_through_a_repeated_one_once(monkeypatch):
    looked = []
    monkeypatch.setattr(
        tree, "num_bytes", lambda value, count=tree.num_bytes: looked.append(value) or count(value)
    )
    small, large = {"a": torch.zeros(2)}, {"a": torch.zeros(3)}
    counter = tree.ByteCounter()
    assert [counter(Sent(params)) for params in (small, small, large, large, small)] == [8, 8, 12, 12, 8]
    assert len(looked) == 3
    assert counter(None) == 0


def test_sha256_depends_on_everything_but_layout():
    base = tree.sha256({"a": torch.zeros(2, 3)})
    assert base == tree.sha256({"a": torch.zeros(3, 2).t()})
    assert base == tree.sha256({"a": torch.zeros(2, 3, requires_grad=True)})
    others = [
        {"b": torch.zeros(2, 3)},
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(2, 3, dtype=torch.int32)},
        {"a": -torch.zeros(2, 3)},
        [torch.zeros(2, 3)],
        {"a": torch.zeros(2, 3), "c": 1},
    ]
    assert len({base, *map(tree.sha256, others)}) == 7
    one, other = (torch.tensor([1.0, x], dtype=torch.bfloat16) for x in (1.0, 1.0078125))
    assert tree.sha256(one) != tree.sha256(other)
    assert tree.sha256(torch.tensor(5)) == tree.sha256(torch.tensor(5))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64]
)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_is_finite_finds_one_bad_element(dtype, bad):
    value = {
        "ok": torch.ones(4),
        "n": torch.ones(9, dtype=torch.int64),
        "x": (torch.ones(2, 500, dtype=dtype),),
    }
    assert tree.is_finite(value)
    value["x"][0][1, 333] = bad
    assert not tree.is_finite(value)


def test_is_finite_is_not_fooled_by_sums():
    assert tree.is_finite(torch.full((100,), 3e38))  # the sum overflows
    assert tree.is_finite(torch.full((100,), 6e4, dtype=torch.float16))
    assert not tree.is_finite(torch.tensor([float("inf"), float("-inf")]))
    assert tree.is_finite([torch.zeros(0), None, torch.nn.Parameter(torch.ones(1))])
    assert tree.is_finite({})


def test_a_transformed_tree_has_the_same_form():
    value = example()
    copy = tree.transform(value, torch.clone)
    assert same(value, copy)
    copy["pair"].left.add_(1.0)
    copy["box"].items.append(None)
    assert same(value, example())
