"""What goes to other processes comes back as it was, whatever carries its tensors."""

from typing import NamedTuple

import pytest
import torch
from torch import nn

from fedfeat.clients.tasks import Task
from fedfeat.errors import ClientError
from fedfeat.executors.codec import CPU, Layout, Packer, arguments_of, portable, put_together, take_apart
from fedfeat.types import Kept, Weights

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


def again(tensor):
    """The tensor from its bytes."""
    layout = Layout.of(tensor)
    memory = layout.bytes_of(tensor)
    assert memory.shape == (layout.num_bytes,)
    return layout.view(memory.clone())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 5, 7), (1, 1, 1, 1)])
def test_a_tensor_comes_back_bit_for_bit(dtype, shape):
    tensor = torch.rand(shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    found = again(tensor)
    assert found.dtype == dtype
    assert found.shape == shape
    assert torch.equal(found, tensor)


IMAGES = torch.arange(120.0).view(2, 3, 4, 5)


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        (IMAGES.to(memory_format=torch.channels_last), (60, 1, 15, 3)),
        (IMAGES[:, :1].to(memory_format=torch.channels_last), (20, 1, 5, 1)),
        (IMAGES.transpose(0, 1), (20, 60, 5, 1)),
        (IMAGES[1:], (60, 20, 5, 1)),
        (IMAGES[:, :, ::2], (30, 10, 5, 1)),
        (IMAGES[:, :1].expand(2, 3, 4, 5), (60, 20, 5, 1)),
        (torch.arange(10.0)[::2], (1,)),
        (IMAGES[1, 2, 3, 4], ()),
    ],
)
def test_a_layout_without_gaps_is_kept_and_one_with_gaps_is_closed(tensor, strides):
    found = again(tensor)
    assert found.stride() == strides
    assert torch.equal(found, tensor)


def test_without_gaps_nothing_is_copied():
    for tensor in (torch.ones(3, 4), IMAGES.to(memory_format=torch.channels_last), IMAGES[1:]):
        assert Layout.of(tensor).bytes_of(tensor).data_ptr() == tensor.data_ptr()


def test_one_tensor_in_two_places_is_listed_once_and_stays_one():
    one, other = torch.ones(3), torch.zeros(2)
    record, tensors = take_apart([one, {"a": other, "b": one}, one[:2]])
    assert [tensor is known for tensor, known in zip(tensors, (one, other), strict=False)] == [True, True]
    assert len(tensors) == 3  # a view is a tensor of its own
    found = put_together(record, tensors)
    assert found[0] is found[1]["b"]
    assert found[1]["a"] is other


def test_a_record_serves_other_tensors_too():
    record, _ = take_apart(Weights({"weight": torch.arange(6.0).view(2, 3)}))
    found = put_together(record, [torch.ones(2, 3)])
    assert type(found) is Weights
    assert torch.equal(found.params["weight"], torch.ones(2, 3))


def test_leaves_of_graphs_stay_leaves():
    leaf = torch.ones(2, requires_grad=True)
    record, tensors = take_apart([leaf, nn.Linear(2, 3), leaf * 2])
    sent, layer, product = put_together(record, [tensor.detach() for tensor in tensors])
    assert not product.requires_grad
    assert sent.requires_grad
    assert layer.weight.requires_grad
    assert product.tolist() == [2.0, 2.0]


def test_devices_become_those_of_the_receiver():
    """The meta device stands in for an accelerator that this machine may not have."""
    record, tensors = take_apart((torch.device("cuda", 1), torch.device("cpu")))
    assert tensors == []
    assert put_together(record, [], torch.device("meta")) == (torch.device("meta"), CPU)


class Scaled(NamedTuple):
    params: dict
    weight: float


class Carried(list):
    """Tensors, and how often any were carried."""

    made = 0

    def __init__(self, tensors):
        super().__init__(tensors)
        Carried.made += 1


@pytest.fixture
def packer(monkeypatch):
    monkeypatch.setattr(Carried, "made", 0)
    return Packer(Carried)


def unpacked(packed):
    return arguments_of(put_together(*one) for one in packed)


def test_arguments_come_back_in_their_order(packer):
    params, kept = {"w": torch.ones(2)}, Kept({"m": torch.zeros(1)})
    found = unpacked(packer([Task(3, 1, Weights(params), kept, 5), None, (torch.eye(2), 7)]))
    assert found[0] == Task(3, 1, Weights(params), kept, 5)
    assert found[1] is None
    assert torch.equal(found[2][0], torch.eye(2))
    assert found[2][1] == 7


def test_payloads_that_share_tensors_are_carried_once_and_keep_what_they_differ_in(packer):
    params = {"w": torch.ones(2)}
    for k in range(4):
        task, inputs = unpacked(packer([Task(k, 0, Scaled(params, 1.0 + k), None), params["w"]]))
        assert (task.client_id, task.payload.weight) == (k, 1.0 + k)
        assert task.payload.params["w"] is params["w"] is inputs
    # The weights for payload and inputs alike, and an empty one for each task of a client that keeps nothing.
    assert Carried.made == 1 + 4


def test_what_a_client_keeps_is_not_held_for_others(packer):
    weights, memory = torch.ones(2), torch.zeros(2)
    for k in range(9):
        packer([Task(k, 0, Weights({"w": weights}), Kept({"m": memory}))])
    assert Carried.made == 1 + 9


def test_several_models_are_held_at_once_and_the_oldest_is_let_go(packer):
    models = [Weights({"w": torch.ones(2)}) for _ in range(5)]
    for k in range(12):
        packer([models[k % 4]])
    assert Carried.made == 4
    packer([models[4]])
    packer([models[0]])
    assert Carried.made == 6


def test_what_is_in_use_is_not_let_go(packer):
    """The server's weights come between models that come once each."""
    models = [Weights({"w": torch.ones(2)}) for _ in range(8)]
    for other in models[1:]:
        packer([models[0]])
        packer([other])
    assert Carried.made == 8


def test_no_tensor_is_taken_for_one_that_was_there_before():
    """Tensors that are let go leave their ids to others; those by which a packing is known must not."""
    packer = Packer(lambda tensors: [tensor.clone() for tensor in tensors])
    for value in range(50):
        (found,) = unpacked(packer([Weights({"w": torch.full((2,), float(value))})]))
        assert found.params["w"].tolist() == [value, value]


def test_the_same_tensors_under_other_names_are_told_apart(packer):
    one, other = torch.ones(1), torch.zeros(1)
    for payload in (Weights({"a": one, "b": other}), Weights({"a": other, "b": one}), Weights({"b": one})):
        (found,) = unpacked(packer([payload]))
        assert found == payload


class Unsendable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


def raised(kind, *arguments):
    try:
        try:
            raise KeyError("the cause")
        except KeyError as cause:
            raise kind(*arguments) from cause
    except kind as error:
        return error


@pytest.mark.parametrize("kind", [ClientError, ValueError])
def test_an_error_keeps_its_sentence_and_leaves_its_stack_trace_as_a_note(kind):
    record, _ = take_apart(portable(raised(kind, "Client 3 failed.")))
    found = put_together(record, [])
    assert type(found) is kind
    assert str(found) == "Client 3 failed."
    (note,) = found.__notes__
    assert "KeyError: 'the cause'" in note


def test_an_error_that_cannot_be_sent_is_told_in_words():
    record, _ = take_apart(portable(raised(Unsendable, "this", "that")))
    found = put_together(record, [])
    assert type(found) is RuntimeError
    assert str(found) == "Unsendable: this and that"
    assert "KeyError: 'the cause'" in found.__notes__[0]


def test_results_are_no_errors():
    assert portable({"a": 1}) == {"a": 1}
