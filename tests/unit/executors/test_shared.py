"""Records whose tensors lie in shared memory."""

import numpy as np
import torch
from torch import Tensor

from fedfeat import tree
from fedfeat.clients.tasks import Task
from fedfeat.executors.forked.shared import pack, unpack
from fedfeat.types import Kept, Update, Weights


def test_records_come_back_with_everything_in_them():
    update = Update(3, 8, Weights({"a": torch.rand(2, 2), "b": torch.arange(3)}), None, {"train/loss": 0.5})
    found = unpack(pack(update))
    assert type(found) is Update
    assert type(found.payload) is Weights
    assert tree.sha256(found) == tree.sha256(update)
    task, indices = unpack(pack((Task(1, 2, None, Kept({"m": torch.ones(1)}), 5), np.arange(4))))
    assert (task.client_id, task.num_steps) == (1, 5)
    assert task.kept.personal["m"].tolist() == [1.0]
    assert indices.tolist() == [0, 1, 2, 3]


def test_tensors_of_all_kinds_lie_side_by_side():
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    sent = [torch.tensor(True), images, torch.empty(0), torch.arange(10.0, dtype=torch.float64)[::2], images]
    packed = pack(sent)
    found = unpack(packed)
    for one, other in zip(found, sent, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    assert found[1].stride() == images.stride()
    assert found[4] is found[1]
    assert len(packed.tensors.memory) == 64 + 512 + 0 + 64  # whole cache lines, the images once
    assert all(tensor.data_ptr() % 8 == 0 for tensor in found)


def test_a_record_without_tensors_takes_no_memory():
    packed = pack({"own/acc": 0.5})
    assert len(packed.tensors.memory) == 0
    assert unpack(packed) == {"own/acc": 0.5}


def test_what_is_packed_is_a_copy_in_shared_memory():
    tensor = torch.zeros(3)
    packed = pack({"w": tensor})
    tensor.fill_(7)
    found = unpack(packed)["w"]
    assert found.tolist() == [0.0, 0.0, 0.0]
    assert found.is_shared()
    # Whoever shares the memory sees the same tensor.
    found.fill_(2)
    assert unpack(packed)["w"].tolist() == [2.0, 2.0, 2.0]


def test_a_tensor_of_a_graph_is_sent_without_its_graph():
    weight = torch.ones(2, requires_grad=True) * 2
    found = unpack(pack([weight]))[0]
    assert type(found) is Tensor
    assert not found.requires_grad
