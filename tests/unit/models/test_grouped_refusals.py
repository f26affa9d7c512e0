"""What cannot be separated into groups is refused in one sentence: key, rule, value."""

import re
from functools import partial

import pytest
import torch

from fedfeat.config.arguments import check_targets
from fedfeat.errors import ConfigError
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mlp import mlp
from fedfeat.models.torchvision_adapter import torchvision_model


def separate(builder, shape, num_classes=10, **options):
    spec = GroupSeparation(**options)
    with torch.device("meta"):
        dense = builder(shape, num_classes)
        return spec(dense, spec.sets(dense))


def option(**options):
    return lambda: GroupSeparation(**options)


def digits(**options):
    return lambda: separate(digits_cnn, (1, 8, 8), **options)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (
            option(trim=True, width_policy="uneven"),
            r"width_policy must be other than uneven with structure\.trim=true, but it is 'uneven'",
        ),
        (
            option(trim=True, separate=False),
            r"trim must be false with structure\.separate=false, but it is True",
        ),
        *(
            (
                option(boundary_pairing="paired", **{key: value}),
                rf"boundary_pairing must be shared with {rule}",
            )
            for key, value, rule in (
                ("boundary", "dense", r"structure\.boundary=dense, but it is 'paired'\.$"),
                ("separate", False, r"structure\.separate=false, but it is 'paired'\.$"),
                (
                    "norm_shared",
                    "gn1",
                    r"structure\.norm_shared=gn1, which mixes the slices, but it is 'paired'\.$",
                ),
            )
        ),
        (
            lambda: separate(torchvision_model, (3, 32, 32), depth=2, boundary_pairing="paired"),
            r"boundary_pairing must be shared where conv1 in layer1_1, which everyone shares, reads .*, but",
        ),
        (digits(depth=4), r"depth must be between 1 and 3 for this network of 4 layers, but it is 4"),
        (digits(depth=0), r"depth must be between 1 and 3 for this network of 4 layers, but it is 0"),
        (
            digits(depth=-1, boundary="dense"),
            r"depth must be between 0 and 3 for this network of 4 layers, but it is -1",
        ),
        (digits(groups=11), r"groups must be between 1 and the 10 classes, but it is 11"),
        (
            digits(num_classes=100, groups=40, width_policy="uneven"),
            r"groups must be at most 32 with structure\.width_policy=uneven, as .* has 32 channels, but it is 40",
        ),
        (
            lambda: separate(
                partial(torchvision_model, arch="efficientnet_b0"),
                (3, 32, 32),
                width_policy="uneven",
                depth=1,
            ),
            r"groups must be at most 8 with structure\.width_policy=uneven, as .* has 8 channels, but it is 10",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_sentence(build, sentence):
    with pytest.raises(ConfigError, match=rf"^structure\.{sentence}"):
        build()


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("groups", 2.0, "be an integer of at least 1"),
        *(("depth", value, "be last6, auto or a number of layers") for value in ("last7", True, 2.5)),
        *(
            ("width_factor", value, "be above 0, or match")
            for value in (0, -1.5, "wide", None, True, float("inf"), float("nan"))
        ),
    ],
)
def test_bad_options_are_refused_by_their_types(key, value, rule):
    with pytest.raises(
        ConfigError, match=rf"^structure\.{key} must {rule}, but it is {re.escape(repr(value))}\.$"
    ):
        check_targets({"structure": {"_target_": "fedfeat.models.grouped.GroupSeparation", key: value}})


def test_a_single_layer_cannot_be_separated():
    rule = r"^structure must separate a network of at least 2 layers, but this one has 1\.$"
    with pytest.raises(ConfigError, match=rule):
        separate(partial(mlp, hidden=[]), (4,), 3)
    for depth in (0, "last6"):
        network = separate(partial(mlp, hidden=[]), (4,), 3, boundary="dense", depth=depth)
        assert network.last_layer.weight.shape == (3, 4)
