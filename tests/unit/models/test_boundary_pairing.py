"""A boundary whose slices belong to groups: which rows those are, and the network that it equals."""

import pytest
import torch

from fedfeat.models.cnn import digits_cnn
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.policy import GROUPED, SHARED, tensor_policies
from fedfeat.models.vgg import vgg9

BN = ("weight", "bias", "running_mean", "running_var")


def separated(builder, shape, kept=None, **options):
    torch.manual_seed(0)
    dense = builder(shape, 10)
    spec = GroupSeparation(**options)
    return spec(dense, spec.sets(dense), kept)


def added_rows(builder, shape, **options):
    """The grouped tensors that a paired boundary has and a shared one has not."""
    shared = separated(builder, shape, **options)
    paired = separated(builder, shape, boundary_pairing="paired", **options)
    assert paired.num_shared == shared.num_shared
    for name, tensor in shared.state_dict().items():
        assert torch.equal(tensor, paired.state_dict()[name])
    left, right = shared.group_rows(), paired.group_rows()
    assert all(torch.equal(groups, right[name]) for name, groups in left.items())
    return {name: groups.tolist() for name, groups in right.items() if name not in left}


def test_the_last_shared_layer_with_norm_and_bias_belongs_to_groups():
    """128 filters of conv3 are 130, 13 of each group; conv1 and conv2 stay everyone's."""
    found = added_rows(vgg9, (3, 8, 8), groups=10)
    names = {"encoder.conv3.conv.weight", "encoder.conv3.conv.bias"} | {
        f"encoder.conv3.norm.{name}" for name in BN
    }
    assert set(found) == names
    assert all(groups == [g for g in range(10) for _ in range(13)] for groups in found.values())


def test_slices_may_be_unequal():
    """128 filters in three groups: 43, 43 and 42."""
    found = added_rows(vgg9, (3, 8, 8), groups=3, width_policy="uneven", norm_shared="none")
    assert set(found) == {"encoder.conv3.conv.weight", "encoder.conv3.conv.bias"}
    assert all([groups.count(g) for g in range(3)] == [43, 43, 42] for groups in found.values())


def test_a_depthwise_layer_behind_the_slices_goes_with_them():
    """Of 28 layers 12 are shared, the last of them depthwise, so that the sixth pointwise one is cut."""
    options = {"groups": 5, "layer_unit": "conv", "depth": 12}
    found = added_rows(mobilenet_v1_cifar, (3, 32, 32), **options)
    weights = [name for name in found if name.endswith("conv.weight")]
    network = separated(mobilenet_v1_cifar, (3, 32, 32), boundary_pairing="paired", **options)
    kernels = [tuple(network.state_dict()[name].shape) for name in weights]
    assert kernels == [(255, 256, 1, 1), (255, 1, 3, 3)]


def test_policies_follow():
    network = separated(digits_cnn, (1, 8, 8), depth=2, boundary_pairing="paired")
    policies = tensor_policies(network)
    by_block = {name: policies[f"encoder.{name}.conv.weight"] for name in ("conv1", "conv2")}
    assert by_block == {"conv1": SHARED, "conv2": GROUPED}
    assert policies["encoder.conv2.norm.running_var"] == GROUPED
    assert policies["encoder.conv2.norm.num_batches_tracked"] == SHARED


@pytest.mark.parametrize("kept", [None, ((3,), (0,), (8,))])
def test_without_norms_it_is_a_dense_boundary_one_layer_earlier(kept):
    """Its slices are then a first grouped layer that reads all there is: same tensors, owners and logits."""
    norms = {"norm_shared": "none", "norm_group": "none"}
    paired = separated(vgg9, (3, 8, 8), kept, depth=3, boundary_pairing="paired", **norms).eval()
    dense = separated(vgg9, (3, 8, 8), kept, depth=2, boundary="dense", **norms).eval()
    rows, expected = paired.group_rows(), dense.group_rows()
    assert {name: groups.tolist() for name, groups in rows.items()} == {
        name: groups.tolist() for name, groups in expected.items()
    }
    dense.load_state_dict(paired.state_dict())
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(paired(x), dense(x))


def test_a_trimmed_network_lacks_the_slices_of_the_groups_that_it_lacks():
    sets = tuple((c,) for c in range(10))
    whole = separated(vgg9, (3, 8, 8), boundary_pairing="paired")
    part = separated(vgg9, (3, 8, 8), (sets[7], sets[2]), boundary_pairing="paired")
    sent = take_rows(whole.state_dict(), rows_of(whole.group_rows(), sets, part.class_sets))
    assert {name: tensor.shape for name, tensor in part.state_dict().items()} == {
        name: tensor.shape for name, tensor in sent.items()
    }
    filters = whole.state_dict()["encoder.conv3.conv.weight"]
    assert torch.equal(
        sent["encoder.conv3.conv.weight"], torch.cat([filters[7 * 13 : 8 * 13], filters[26:39]])
    )
