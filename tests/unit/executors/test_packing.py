import numpy as np
import pytest
import torch
from torch import Tensor

from fedfeat import tree
from fedfeat.executors.forked.packing import pack, unpack
from fedfeat.types import Kept, Task, Update, Weights

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 5, 7), (1, 1, 1, 1)])
def test_tensors_come_back_bit_for_bit(dtype, shape):
    tensor = torch.rand(shape).mul(9).to(dtype)
    found = unpack(pack(tensor))
    assert found.dtype == dtype
    assert found.shape == shape
    assert torch.equal(found, tensor)


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


def test_layouts_are_kept_where_they_leave_no_gaps():
    images = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    every_second = torch.arange(10.0)[::2]
    found, strided = unpack(pack([images, every_second]))
    assert found.stride() == images.stride()
    assert torch.equal(found, images)
    assert torch.equal(strided, every_second)
    assert strided.is_contiguous()


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


def test_a_parameter_of_a_graph_is_sent_without_its_graph():
    weight = torch.ones(2, requires_grad=True) * 2
    found = unpack(pack([weight]))[0]
    assert type(found) is Tensor
    assert not found.requires_grad
