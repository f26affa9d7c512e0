"""Tensors as the object store of a node gives them: bytes that nobody may write to."""

import numpy as np
import pytest
import torch
from harness import make_data
from torch import nn

pytest.importorskip("ray", reason="executor=ray needs the extra `ray`, which is not installed")

from fedfeat.executors.on_ray.flat import Flat, pack, unpack

CPU = torch.device("cpu")


def read_only(flat):
    """The same with its bytes as the object store gives them."""
    data = flat.data.copy()
    data.flags.writeable = False
    return flat._replace(data=data)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_tensor_comes_back_bit_for_bit(dtype, shape, fixed):
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = read_only(Flat.of(tensor, fixed)).tensor(CPU)
    assert found.dtype == dtype
    assert found.shape == shape
    assert torch.equal(found, tensor)


def test_a_layout_without_gaps_is_kept_and_one_with_gaps_is_closed():
    images = torch.arange(120.0).view(2, 3, 4, 5)
    for tensor in (images.to(memory_format=torch.channels_last), images.transpose(0, 1)):
        found = Flat.of(tensor).tensor(CPU)
        assert found.stride() == tensor.stride()
        assert torch.equal(found, tensor)
    assert Flat.of(images[:, :, ::2]).data.nbytes == 60 * 4


def test_a_tensor_has_memory_of_its_own_unless_it_is_fixed():
    flat = Flat.of(torch.zeros(4))
    flat.tensor(CPU).fill_(7)
    assert not flat.data.any()
    kept = read_only(Flat.of(torch.ones(4), fixed=True))
    assert kept.tensor(CPU).data_ptr() == kept.data.ctypes.data
    assert torch.equal(kept.tensor(CPU), torch.ones(4))


def test_flattening_copies_nothing_on_the_cpu():
    tensor = torch.ones(3, 4)
    assert Flat.of(tensor).data.ctypes.data == tensor.data_ptr()


def test_what_was_on_a_device_comes_back_on_that_of_the_receiver():
    """The meta device stands in for an accelerator that this machine may not have."""
    flat = Flat.of(torch.ones(2))._replace(on_device=True)
    assert flat.tensor(torch.device("meta")).device.type == "meta"


def test_a_module_keeps_its_parameters_and_a_function_what_it_has_closed_over():
    layer = nn.Linear(2, 3)
    apply = unpack(pack(lambda x: layer(x)), CPU)
    inputs = torch.randn(5, 2)
    assert torch.equal(apply(inputs), layer(inputs))


def test_the_data_of_a_federation_draw_the_same_batches_from_read_only_memory():
    data = make_data()
    fixed = [
        part for split in (data.dataset.train, data.dataset.test) for part in (split.inputs, split.labels)
    ]
    packed = pack(data, fixed)
    assert sum(flat.fixed for flat in packed.tensors) == 4
    sent = unpack(packed._replace(tensors=[read_only(flat) for flat in packed.tensors]), CPU)
    pairs = zip(data.train_batches(1, 0, 2, 2), sent.train_batches(1, 0, 2, 2), strict=True)
    for (x, y), (sent_x, sent_y) in pairs:
        assert torch.equal(x, sent_x)
        assert torch.equal(y, sent_y)
    assert np.array_equal(sent.class_counts, data.class_counts)
