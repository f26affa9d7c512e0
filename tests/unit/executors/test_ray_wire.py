"""What goes to other nodes comes back as it was."""

import numpy as np
import pytest
import torch
from harness import make_data
from torch import nn

pytest.importorskip("ray", reason="executor=ray needs the extra `ray`, which is not installed")

from fedfeat.errors import ClientError
from fedfeat.executors.on_ray.wire import Flat, pack, put_together, take_apart, unpack
from fedfeat.types import Weights

CPU = torch.device("cpu")


def read_only(flat):
    """The same with its bytes as the object store gives them."""
    data = flat.data.copy()
    data.flags.writeable = False
    return flat._replace(data=data)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4, 5)])
def test_a_tensor_comes_back_bit_for_bit(dtype, shape):
    tensor = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = read_only(Flat.of(tensor)).tensor(CPU)
    assert found.dtype == dtype
    assert found.shape == shape
    assert torch.equal(found, tensor)


def test_a_layout_without_gaps_is_kept_and_one_with_gaps_is_closed():
    images = torch.arange(120.0).view(2, 3, 4, 5)
    last = images.to(memory_format=torch.channels_last)
    assert Flat.of(last).tensor(CPU).stride() == last.stride() == (60, 1, 15, 3)
    assert torch.equal(Flat.of(last).tensor(CPU), images)
    assert Flat.of(images.transpose(0, 1)).tensor(CPU).stride() == (20, 60, 5, 1)
    found = Flat.of(images[:, :, ::2]).tensor(CPU)
    assert torch.equal(found, images[:, :, ::2])
    assert found.stride() == (30, 10, 5, 1)


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


def test_one_tensor_in_two_places_is_sent_once_and_stays_one():
    one, other = torch.ones(3), torch.zeros(2)
    parcel = pack([one, {"a": other, "b": one}])
    assert [flat.data.nbytes for flat in parcel.tensors] == [12, 8]
    found = unpack(parcel, CPU)
    assert found[0] is found[1]["b"]
    assert torch.equal(found[1]["a"], other)


def test_records_without_tensors_travel_apart_from_them():
    payload = Weights({"weight": torch.arange(6.0).view(2, 3)})
    record, tensors = take_apart(payload)
    assert tensors[0] is payload.params["weight"]
    # Other tensors in the same record: what is sent once serves any record of its kind.
    found = put_together(record, [Flat.of(torch.ones(2, 3))], CPU)
    assert isinstance(found, Weights)
    assert torch.equal(found.params["weight"], torch.ones(2, 3))


def test_a_module_keeps_its_parameters_and_a_function_what_it_has_closed_over():
    layer = nn.Linear(2, 3)
    apply = unpack(pack(lambda x: layer(x)), CPU)
    inputs = torch.randn(5, 2)
    assert torch.equal(apply(inputs), layer(inputs))
    assert unpack(pack(layer), CPU).weight.requires_grad


def test_devices_become_those_of_the_receiver():
    """The meta device stands in for an accelerator that this machine may not have."""
    record, tensors = take_apart((torch.device("cuda", 1), torch.device("cpu")))
    assert tensors == []
    assert put_together(record, [], torch.device("meta")) == (torch.device("meta"), CPU)
    flat = Flat.of(torch.ones(2))._replace(on_device=True)
    assert flat.tensor(torch.device("meta")).device.type == "meta"


def test_the_data_of_a_federation_draw_the_same_batches_from_read_only_memory():
    data = make_data()
    fixed = [
        part for split in (data.dataset.train, data.dataset.test) for part in (split.inputs, split.labels)
    ]
    parcel = pack(data, fixed)
    assert sum(flat.fixed for flat in parcel.tensors) == 4
    sent = unpack(parcel._replace(tensors=[read_only(flat) for flat in parcel.tensors]), CPU)
    pairs = zip(data.train_batches(1, 0, 2, 2), sent.train_batches(1, 0, 2, 2), strict=True)
    for (x, y), (sent_x, sent_y) in pairs:
        assert torch.equal(x, sent_x)
        assert torch.equal(y, sent_y)
    assert np.array_equal(sent.class_counts, data.class_counts)


def test_an_error_keeps_its_sentence_and_its_notes():
    error = ClientError("Client 3 failed.")
    error.add_note("where it was")
    found = unpack(pack(error), CPU)
    assert type(found) is ClientError
    assert (str(found), found.__notes__) == ("Client 3 failed.", ["where it was"])
