"""The group-separated form of every architecture: what no group may see of another."""

import itertools
from functools import partial

import pytest
import torch
from isolation import assert_isolated
from torch import nn

from fedfeat.models.class_map import CIFAR100_SUPERCLASSES
from fedfeat.models.cnn import digits_cnn, mnist_cnn
from fedfeat.models.grouped import GroupedNetwork, GroupSeparation
from fedfeat.models.grouped_layers import GroupedLinear, Runs
from fedfeat.models.mlp import mlp
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.models.torchvision_adapter import torchvision_model
from fedfeat.models.vgg import vgg9, vgg16_cifar

# Threads bring nothing to such small tensors and cost a lot where other processes are busy.
torch.set_num_threads(1)
NAMES = tuple(name for names in CIFAR100_SUPERCLASSES.values() for name in names.split())
# Images as small as the network takes them.
NETWORKS = {
    "vgg9": (vgg9, (3, 8, 8)),
    "vgg16": (vgg16_cifar, (3, 32, 32)),
    "mobilenet": (partial(mobilenet_v1_cifar, width_multiplier=0.25), (3, 16, 16)),
    "digits": (digits_cnn, (1, 8, 8)),
    "mnist": (mnist_cnn, (1, 12, 12)),
    "mlp": (partial(mlp, hidden=[44, 35, 28]), (12,)),
    "resnet18": (partial(torchvision_model, small_input=True), (3, 8, 8)),
    "mobilenet_v2": (partial(torchvision_model, arch="mobilenet_v2"), (3, 32, 32)),
}


def build(name, num_classes=10, **options):
    """A dense network and its group-separated form."""
    torch.manual_seed(0)
    builder, shape = NETWORKS[name]
    dense = builder(shape, num_classes)
    # In small networks all that can be: the default leaves a third of them shared.
    depth = 1 if name in ("digits", "mnist", "mlp") else "last6"
    spec = GroupSeparation(**({"depth": depth} | options))
    return dense, spec(dense, spec.sets(dense, NAMES))


ISOLATED = [
    ("vgg9", 100, {"groups": 10}),
    ("vgg9", 10, {"groups": 10, "boundary": "dense"}),
    ("vgg9", 10, {"groups": 5, "norm_group": "bn", "width_policy": "uneven"}),
    ("vgg9", 100, {"class_map": "superclass", "layer_unit": "conv", "norm_group": "none"}),
    ("vgg16", 100, {"groups": 10}),
    ("vgg16", 10, {"groups": 10, "boundary": "dense", "norm_shared": "gn1"}),
    ("mobilenet", 10, {"groups": 10, "layer_unit": "block"}),
    ("mobilenet", 10, {"groups": 10, "layer_unit": "conv"}),
    ("mobilenet", 10, {"groups": 5, "layer_unit": "block", "boundary": "dense"}),
    ("mobilenet", 10, {"groups": 5, "layer_unit": "conv", "boundary": "dense"}),
    ("mobilenet", 10, {"groups": 5, "depth": 10, "layer_unit": "conv"}),  # the entry is a depthwise layer
    ("mobilenet", 10, {"groups": 3, "layer_unit": "block", "width_policy": "uneven"}),
    ("mnist", 10, {"groups": 10}),
    ("mnist", 11, {"groups": 4, "boundary": "dense", "class_map": "strided"}),
    ("resnet18", 10, {"groups": 2}),
    ("resnet18", 10, {"groups": 8, "layer_unit": "conv"}),
    ("resnet18", 10, {"groups": 8, "depth": 9, "boundary": "dense"}),
    ("mobilenet_v2", 10, {"groups": 2}),
    ("vgg9", 100, {"groups": 10, "boundary_pairing": "paired"}),
    (
        "vgg9",
        10,
        {"groups": 3, "width_policy": "uneven", "boundary_pairing": "paired", "norm_shared": "none"},
    ),
    ("vgg16", 100, {"groups": 10, "depth": 13, "boundary_pairing": "paired"}),  # the groups are linear layers
    ("vgg16", 10, {"groups": 10, "depth": 14, "boundary_pairing": "paired"}),  # so is the last shared layer
    ("mobilenet", 10, {"groups": 10, "boundary_pairing": "paired"}),
    # A shared depthwise layer follows the layer that is cut into slices.
    ("mobilenet", 10, {"groups": 5, "depth": 10, "layer_unit": "conv", "boundary_pairing": "paired"}),
    ("mobilenet", 10, {"groups": 5, "depth": 12, "layer_unit": "conv", "boundary_pairing": "paired"}),
    ("resnet18", 10, {"groups": 2, "depth": 1, "boundary_pairing": "paired"}),  # the stem is cut into slices
]


@pytest.mark.parametrize(
    ("name", "num_classes", "options"),
    ISOLATED,
    ids=[f"{name}-{classes}-{'-'.join(map(str, options.values()))}" for name, classes, options in ISOLATED],
)
def test_no_group_learns_from_a_class_of_another(name, num_classes, options):
    assert_isolated(build(name, num_classes, **options)[1])


@pytest.mark.parametrize("name", ["digits", "mlp"])
@pytest.mark.parametrize("boundary", ["slice", "dense", "paired"])
@pytest.mark.parametrize("width_policy", ["nearest", "ceil", "floor", "uneven"])
def test_isolation_holds_for_every_width_and_map(name, boundary, width_policy):
    choice = {"boundary_pairing": "paired"} if boundary == "paired" else {"boundary": boundary}
    for num_classes, options in (
        (10, {}),
        (10, {"groups": 4, "class_map": "strided"}),
        (11, {"groups": 3, "class_map": "random"}),
        (10, {"class_map": [[0, 3, 4], [9], [1, 2, 8, 7], [5, 6]]}),
        (10, {"groups": 1}),
    ):
        assert_isolated(build(name, num_classes, width_policy=width_policy, **choice, **options)[1])


def test_a_shared_filter_in_front_of_slices_learns_from_its_groups_classes_alone():
    """methods/fed2.md#boundary: what ``slice`` implies and ``dense`` does not."""
    for boundary, sees_all in (("slice", False), ("dense", True)):
        _, network = build("vgg9", boundary=boundary, depth=3)
        network.eval()
        filters = network.get_parameter("encoder.conv3.conv.weight")
        logits = network(torch.randn(3, 3, 8, 8))
        gradient = torch.autograd.grad(logits[:, 4].sum(), filters)[0]
        outside = torch.ones(len(filters), dtype=torch.bool)
        outside[4 * 13 : 5 * 13] = False
        assert bool(gradient[outside].any()) == sees_all
        assert gradient[~outside].any()


def weighted(network):
    """Convolutions and linear layers, by the layer that they are in."""
    kinds = (nn.Conv2d, nn.Linear, GroupedLinear)
    names = [name for name, module in network.named_modules() if isinstance(module, kinds)]
    return {layer: list(found) for layer, found in itertools.groupby(names, lambda n: n.split(".runs.")[0])}


PLAIN = ("vgg9", "vgg16", "mobilenet", "digits", "mnist", "mlp")


@pytest.mark.parametrize(
    ("name", "boundary"), [*((name, "slice") for name in NETWORKS), *((name, "dense") for name in PLAIN)]
)
def test_a_grouped_layer_is_one_kernel(name, boundary):
    with torch.device("meta"):
        dense, network = build(name, groups=2, boundary=boundary)
    assert list(weighted(network)) == list(weighted(dense))
    assert all(len(kernels) == 1 for kernels in weighted(network).values())


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("boundary", ["slice", "dense"])
def test_uneven_groups_take_at_most_three_kernels(name, boundary):
    with torch.device("meta"):
        dense, network = build(name, groups=10, boundary=boundary, width_policy="uneven")
    assert list(weighted(network)) == list(weighted(dense))
    counts = [len(kernels) for kernels in weighted(network).values()]
    assert max(counts) in (2, 3)
    assert any(isinstance(module, Runs) for module in network.modules())


def test_a_group_network_says_which_group_owns_what():
    _, network = build("vgg9", depth=3, class_map="strided", groups=2)
    assert isinstance(network, GroupedNetwork)
    assert network.class_sets == ((0, 2, 4, 6, 8), (1, 3, 5, 7, 9))
    assert network.num_shared == 3
    rows = network.group_rows()
    state = network.state_dict()
    shared = {key for key in state if key.split(".")[1] in ("conv1", "conv2", "conv3")}
    assert set(rows) == set(state) - shared
    for key, groups in rows.items():
        assert groups.tolist() == sorted(groups.tolist())
        assert len(groups) == len(state[key])
        assert (groups == 0).sum() == (groups == 1).sum()
