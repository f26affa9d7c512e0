"""What a trimmed client computes: the whole network's logits on the groups that it keeps."""

from functools import partial

import numpy as np
import pytest
import torch

from fedfeat.clients.networks import OneNetwork, separated
from fedfeat.models.cnn import digits_cnn, mnist_cnn
from fedfeat.models.flops import forward_flops, training_flops
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.models.grouped import GroupedNetwork, GroupSeparation
from fedfeat.models.mlp import mlp
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9
from fedfeat.params import copy_into

# Threads bring nothing to such small tensors and cost a lot where other processes are busy.
torch.set_num_threads(1)
# Five groups of two classes: client 0 holds all, 1 the classes 3, 4 and 9, 2 class 6 alone, 3 as 1.
COUNTS = np.zeros((4, 10), dtype=np.int64)
COUNTS[0] = 1
COUNTS[1, [3, 4, 9]] = 2, 1, 5
COUNTS[2, 6] = 3
COUNTS[3, [2, 5, 8]] = 1
PAIRS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


def seeded(make):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return make()


def trimmed(builder, shape, counts=COUNTS, **options):
    """The networks of four clients around a whole that was not just initialised."""
    spec = GroupSeparation(**({"groups": 5, "trim": True} | options))
    networks = separated(spec, lambda: builder(shape, 10), seeded, counts, (), 0)
    whole = networks.build()
    generator = torch.Generator().manual_seed(1)
    for tensor in whole.state_dict().values():
        if tensor.is_floating_point():
            tensor += 0.1 * torch.rand(tensor.shape, generator=generator) - 0.05
    return networks, whole.eval()


def part_of(networks, whole, key):
    """A client's network with its rows of the whole's present weights."""
    network = networks.build(key)
    copy_into(network, take_rows(whole.state_dict(), rows_of(whole.group_rows(), whole.class_sets, key)))
    return network.eval()


ARCHITECTURES = {
    "vgg9": (vgg9, (3, 8, 8), {"class_map": "strided"}),
    "mobilenet": (partial(mobilenet_v1_cifar, width_multiplier=0.25), (3, 16, 16), {"layer_unit": "block"}),
    "mobilenet-dense": (
        partial(mobilenet_v1_cifar, width_multiplier=0.25),
        (3, 16, 16),
        {"layer_unit": "conv", "boundary": "dense"},
    ),
    "mnist": (mnist_cnn, (1, 12, 12), {"depth": 1, "class_map": "random"}),
    "digits": (digits_cnn, (1, 8, 8), {"depth": 1, "class_map": [[9], [0, 3, 4], [1, 2], [5, 7], [6, 8]]}),
    "digits-fc": (digits_cnn, (1, 8, 8), {"depth": 2, "norm_shared": "none"}),
    "digits-dense": (digits_cnn, (1, 8, 8), {"depth": 1, "boundary": "dense", "norm_shared": "gn1"}),
    "digits-last": (digits_cnn, (1, 8, 8), {"depth": 3, "boundary": "dense"}),
    "digits-bn": (digits_cnn, (1, 8, 8), {"depth": 1, "norm_group": "bn"}),
    "mlp": (partial(mlp, hidden=[20, 15]), (12,), {"depth": 1}),
    "vgg9-paired": (vgg9, (3, 8, 8), {"class_map": "strided", "boundary_pairing": "paired"}),
    "mobilenet-paired": (
        partial(mobilenet_v1_cifar, width_multiplier=0.25),
        (3, 16, 16),
        {"layer_unit": "conv", "depth": 12, "boundary_pairing": "paired"},
    ),
    "digits-paired": (digits_cnn, (1, 8, 8), {"depth": 2, "boundary_pairing": "paired"}),
    "mlp-paired": (partial(mlp, hidden=[20, 15]), (12,), {"depth": 2, "boundary_pairing": "paired"}),
    "mlp-all": (partial(mlp, hidden=[20, 15]), (12,), {"depth": 0, "boundary": "dense"}),
    "resnet18": (partial(torchvision_model, small_input=True), (3, 8, 8), {}),
    "resnet18-shortcut": (
        partial(torchvision_model, small_input=True),
        (3, 8, 8),
        {"depth": 2, "boundary": "dense"},
    ),
    # The boundary goes through a block, with and without a layer on its shortcut.
    "resnet18-inside": (
        partial(torchvision_model, small_input=True),
        (3, 8, 8),
        {"depth": 4, "layer_unit": "conv"},
    ),
    "resnet18-branch": (
        partial(torchvision_model, small_input=True),
        (3, 8, 8),
        {"depth": 7, "layer_unit": "conv"},
    ),
    "resnet18-paired": (
        partial(torchvision_model, small_input=True),
        (3, 8, 8),
        {"boundary_pairing": "paired"},
    ),
    "mobilenet_v2": (partial(torchvision_model, arch="mobilenet_v2"), (3, 32, 32), {}),
    # Inside of a squeeze-excitation.
    "mobilenet_v3": (
        partial(torchvision_model, arch="mobilenet_v3_small"),
        (3, 32, 32),
        {"depth": 3, "layer_unit": "conv"},
    ),
    "efficientnet": (
        partial(torchvision_model, arch="efficientnet_b0"),
        (3, 32, 32),
        {"class_map": "strided"},
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_trimmed_network_is_the_wholes_part(name):
    builder, shape, options = ARCHITECTURES[name]
    networks, whole = trimmed(builder, shape, **options)
    key = networks.key(1)
    kept = sorted(c for classes in key for c in classes)
    lost = sorted(set(range(10)) - set(kept))
    x = torch.randn(3, *shape)
    network, expected = part_of(networks, whole, key), whole(x)
    found = network(x)
    torch.testing.assert_close(found[:, kept], expected[:, kept], rtol=1e-4, atol=1e-5)
    assert (found[:, lost] == -torch.inf).all()
    assert sum(p.numel() for p in network.parameters()) < sum(p.numel() for p in whole.parameters())
    assert forward_flops(network) < forward_flops(whole)


@pytest.mark.parametrize(
    "name",
    [
        "vgg9",
        "vgg9-paired",
        "digits",
        "digits-fc",
        "digits-last",
        "digits-paired",
        "mlp",
        "mlp-paired",
        "resnet18-inside",
    ],
)
def test_the_order_of_the_groups_does_not_matter(name):
    builder, shape, options = ARCHITECTURES[name]
    networks, whole = trimmed(builder, shape, **options)
    x = torch.randn(3, *shape)
    for own in (networks.key(1), whole.class_sets):
        permuted = (own[-1], *own[:-1])
        network = part_of(networks, whole, permuted)
        assert network.class_sets == permuted != own
        found = network(x)
        kept = [c for classes in own for c in classes]
        torch.testing.assert_close(found[:, kept], whole(x)[:, kept], rtol=1e-4, atol=1e-5)


def test_training_costs_what_is_left():
    """Of 5 groups 1 is kept: a fifth of the grouped layers, for the last of which 10 classes become 2."""
    networks, whole = trimmed(partial(mlp, hidden=[20, 15]), (12,), depth=1)
    part = networks.build(networks.key(2))
    shared, grouped = 12 * 20, 5 * 4 * 3 + 5 * 3 * 2
    assert forward_flops(whole) == 2 * (shared + grouped)
    assert forward_flops(part) == 2 * (shared + grouped // 5)
    # Gradients of inputs and weights; the first layer's input needs none.
    assert training_flops(part) == 2 * (2 * shared + 3 * grouped // 5)


def test_keys_are_the_groups_that_hold_a_class():
    networks, _ = trimmed(*ARCHITECTURES["mlp"][:2])
    keys = [networks.key(client_id) for client_id in range(4)]
    assert keys == [None, (PAIRS[1], PAIRS[2], PAIRS[4]), (PAIRS[3],), (PAIRS[1], PAIRS[2], PAIRS[4])]


def test_all_networks_start_from_the_same_weights():
    networks, _ = trimmed(digits_cnn, (1, 8, 8), depth=1)
    whole, again = networks.build(), networks.build()
    assert isinstance(whole, GroupedNetwork)
    for key, tensor in whole.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[key])
    part = networks.build(networks.key(1))
    assert part.class_sets == networks.key(1)
    assert list(part.state_dict()) == list(whole.state_dict())
    rows = whole.group_rows()
    for key, tensor in part.state_dict().items():
        expected = whole.state_dict()[key]
        if key in rows:
            expected = expected[torch.isin(rows[key], torch.tensor([1, 2, 4]))]
        assert torch.equal(tensor, expected)


def test_building_draws_nothing_from_the_callers_generator():
    networks, _ = trimmed(digits_cnn, (1, 8, 8))
    state = torch.get_rng_state()
    networks.build(), networks.build(networks.key(1))
    assert torch.equal(torch.get_rng_state(), state)


def test_missing_classes_send_no_gradient_and_no_nan():
    networks, whole = trimmed(digits_cnn, (1, 8, 8), depth=1)
    network = part_of(networks, whole, networks.key(1))
    x = torch.randn(4, 1, 8, 8)
    torch.nn.functional.cross_entropy(network(x), torch.tensor([3, 4, 9, 9])).backward()
    gradients = [parameter.grad for parameter in network.parameters()]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all(gradient.any() for gradient in gradients)


def test_matching_widths_are_those_of_the_whole():
    """The factor is found for all groups, so that the parts of unequal clients fit together."""
    networks, whole = trimmed(digits_cnn, (1, 8, 8), depth=1, width_factor="match")
    part = part_of(networks, whole, networks.key(2))
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(part(x)[:, 6:8], whole(x)[:, 6:8], rtol=1e-5, atol=1e-5)


def test_without_trimming_everyone_runs_the_servers_network():
    for options in ({}, {"separate": False}):
        networks, _ = trimmed(digits_cnn, (1, 8, 8), trim=False, **options)
        assert isinstance(networks, OneNetwork)
        assert [networks.key(client_id) for client_id in range(4)] == [None] * 4
        assert isinstance(networks.build(), GroupedNetwork) == (not options)


@pytest.mark.parametrize("boundary", ["slice", "dense"])
def test_a_client_without_examples_has_the_whole_network(boundary):
    counts = np.concatenate([COUNTS, np.zeros((1, 10), dtype=np.int64)])
    networks, _ = trimmed(digits_cnn, (1, 8, 8), counts, boundary=boundary)
    assert networks.key(4) is None
    assert networks.build(networks.key(4))(torch.ones(1, 1, 8, 8)).isfinite().all()
