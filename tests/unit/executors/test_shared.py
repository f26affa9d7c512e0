"""Records whose tensors lie in shared memory."""

import os
import socket
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

from fedfeat import tree
from fedfeat.clients.tasks import Task
from fedfeat.executors.forked.shared import pack, receive, send
from fedfeat.types import Kept, Update, Weights


@pytest.fixture
def channel():
    """Two ends of one."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.fixture
def through(channel):
    """What arrives of packed values."""

    def passed(*packed):
        send(channel[0], "word", packed)
        word, values = receive(channel[1])
        assert word == "word"
        return values

    return passed


def num_open():
    return len(os.listdir("/proc/self/fd"))


def test_records_come_back_with_everything_in_them(through):
    update = Update(3, 8, Weights({"a": torch.rand(2, 2), "b": torch.arange(3)}), None, {"train/loss": 0.5})
    (found,) = through(pack(update))
    assert type(found) is Update
    assert type(found.payload) is Weights
    assert tree.sha256(found) == tree.sha256(update)
    one = Task(1, 2, None, Kept({"m": torch.ones(1)}), 5)
    task, indices = through(pack(one), pack(np.arange(4)))
    assert (task.client_id, task.num_steps) == (1, 5)
    assert task.kept.personal["m"].tolist() == [1.0]
    assert indices.tolist() == [0, 1, 2, 3]


def test_tensors_of_all_kinds_lie_side_by_side(through):
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sent = [torch.tensor(True), images, torch.empty(0), torch.arange(10.0, dtype=torch.float64)[::2], images]
    packed = pack(sent)
    (found,) = through(packed)
    for one, other in zip(found, sent, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found[1].stride() == images.stride()
    assert found[4] is found[1]
    (descriptor,) = packed.tensors.descriptors
    assert os.fstat(descriptor).st_size == 64 + 512 + 0 + 64  # whole cache lines, the images once
    assert all(tensor.data_ptr() % 8 == 0 for tensor in found)


def test_a_record_without_tensors_takes_no_memory(through):
    packed = pack({"own/acc": 0.5})
    assert packed.tensors.descriptors == []
    assert through(packed) == [{"own/acc": 0.5}]


def test_what_is_packed_is_a_copy_and_so_is_what_arrives(through):
    tensor = torch.zeros(3)
    packed = pack({"w": tensor})
    tensor.fill_(7)
    (found,) = through(packed)
    assert found["w"].tolist() == [0.0, 0.0, 0.0]
    found["w"].fill_(2)
    assert through(packed)[0]["w"].tolist() == [0.0, 0.0, 0.0]


def test_a_long_record_waits_for_no_reader(channel):
    """As where two processes write to each other."""
    names = {f"{number}." + "x" * 100: torch.zeros(()) for number in range(20_000)}
    writer = threading.Thread(target=send, args=(channel[0], "", [pack(names)]), daemon=True)
    writer.start()
    writer.join(60)
    assert not writer.is_alive()
    assert receive(channel[1])[1][0].keys() == names.keys()


def test_messages_hold_no_descriptor_once_they_are_gone(through):
    before = num_open()
    found = [through(pack({"w": torch.full((3,), float(number))})) for number in range(50)]
    assert num_open() == before
    assert [one["w"].tolist() for (one,) in found] == [[float(number)] * 3 for number in range(50)]


def test_an_end_that_is_closed_is_noticed(channel):
    channel[0].close()
    with pytest.raises(EOFError):
        receive(channel[1])
    with pytest.raises(BrokenPipeError):
        send(channel[1], "", [])


def test_a_tensor_of_a_graph_is_sent_without_its_graph(through):
    weight = torch.ones(2, requires_grad=True) * 2
    ((found,),) = through(pack([weight]))
    assert type(found) is Tensor
    assert not found.requires_grad
