"""Alignment of a cohort by hand, and the neurons of trimmed networks at their places among the server's."""

import math
from functools import partial

import pytest
import torch

from fedfeat.features.diagnostics import AlignmentProbe, align, on_server_neurons, own_neurons, server_alone
from fedfeat.features.preference import NO_CLASS, Preferences, class_preferences
from fedfeat.models.cnn import digits_cnn
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.mlp import mlp
from fedfeat.models.mobilenet import mobilenet_v1_cifar
from fedfeat.params import copy_into
from fedfeat.runs.feature_figures import draw_encodings, encodings

LAYERS = ("encoder.conv.conv", "head.fc1.linear", "head.fc2.linear")
LAST = torch.eye(2)


def preferences(*hidden, present=None):
    """Of a network with hidden layers ``conv`` and ``fc1`` and two classes."""
    vectors = (*map(torch.tensor, hidden), LAST)
    masks = [torch.ones(len(p), dtype=torch.bool) for p in vectors]
    for layer, mask in (present or {}).items():
        masks[layer] = torch.tensor(mask)
    return Preferences(LAYERS, vectors, tuple(masks))


# Normalised, the first layer holds (1, 0), (0, 1) - (0, 1), (0, 1) - (1/4, 3/4), none; the second (1, 0) everywhere.
THREE = {
    4: preferences([[2.0, 0.0], [0.0, 3.0]], [[1.0, 0.0]]),
    7: preferences([[0.0, 1.0], [0.0, 1.0]], [[2.0, -1.0]]),
    9: preferences([[1.0, 3.0], [0.0, 0.0]], [[5.0, 0.0]]),
}


def test_without_hidden_layers_there_is_nothing_to_compare():
    one = Preferences(("head",), (torch.eye(2),), (torch.ones(2, dtype=torch.bool),))
    assert align({0: one, 1: one}) is None


def test_three_clients_by_hand():
    """Of conv's first neuron 1 pair of 3 agrees, of its second the one pair that has a class; fc1 agrees."""
    found = align(THREE)
    assert found.layers == ("conv", "fc1")
    assert found.client_ids == (4, 7, 9)
    assert [p.tolist() for p in found.primaries[0]] == [[0, 1], [1, 1], [1, NO_CLASS]]
    assert [p.tolist() for p in found.primaries[1]] == [[0], [0], [0]]
    # First neuron: 2, 2 * (3/4)^2 and 2 * (1/4)^2 over the pairs; second: 0, 1/2 and 1/2.
    distance = ((2 + 1.125 + 0.125) / 3 + (0 + 0.5 + 0.5) / 3) / 2
    # (1, 0) and (0, 1) are sqrt(1/2) from their mean, (1/4, 3/4) and (1/2, 1/2) sqrt(2) / 8.
    expected = {
        "align/agreement_conv": (1 / 3 + 1) / 2,
        "align/agreement_fc1": 1.0,
        "align/agreement": (1 / 3 + 1 + 1) / 3,
        "align/distance_conv": distance,
        "align/distance_fc1": 0.0,
        "align/distance": distance,
        "align/tv_conv": (math.sqrt(0.5) + 0.0 + math.sqrt(2) / 8) / 3,
        "align/tv_fc1": 0.0,
    }
    assert found.metrics == pytest.approx(expected, abs=1e-6)


def test_negative_preferences_become_what_is_asked_for():
    """Under ``abs`` client 7 has (2/3, 1/3) in fc1: 2 / 9 from the two others."""
    found = align(THREE, "abs")
    assert found.metrics["align/distance_fc1"] == pytest.approx((2 / 9 + 2 / 9 + 0) / 3)
    assert found.metrics["align/agreement_fc1"] == 1.0


def test_one_client_alone_has_nothing_to_agree_with():
    assert align({}) is None
    assert align({4: THREE[4]}) is None


def test_a_client_counts_only_for_the_neurons_that_it_has():
    """Client 9 lacks conv's second neuron: without it, the two others agree there in full."""
    lacking = THREE | {
        9: THREE[9]._replace(
            present=preferences([[0.0] * 2] * 2, [[0.0] * 2], present={0: [True, False]}).present
        )
    }
    found = align(lacking).metrics
    assert found["align/distance_conv"] == pytest.approx(((2 + 1.125 + 0.125) / 3 + 0) / 2)
    assert found["align/tv_conv"] == pytest.approx((math.sqrt(0.5) + 0.0 + 0.0) / 3, abs=1e-6)
    assert found["align/agreement"] == align(THREE).metrics["align/agreement"]


def test_what_no_two_clients_have_is_absent_and_adds_nothing():
    first = preferences([[1.0, 0.0], [0.0, 0.0]], [[1.0, 0.0]], present={0: [True, False]})
    other = preferences([[0.0, 0.0], [0.0, 1.0]], [[0.0, 1.0]], present={0: [False, True]})
    found = align({0: first, 1: other}).metrics
    assert "align/distance_conv" not in found
    assert "align/agreement_conv" not in found
    assert found["align/distance"] == found["align/distance_fc1"] == pytest.approx(2.0)
    assert found["align/agreement"] == 0.0
    alone = [
        one._replace(layers=LAYERS[::2], vectors=one[1][::2], present=one[2][::2]) for one in (first, other)
    ]
    assert "align/distance" not in align(dict(enumerate(alone))).metrics


def test_preferences_that_are_not_finite_are_not_left_out():
    """As absent ones are: a neuron's NaN is no neuron that a client lacks."""
    first, second, *_ = THREE.values()
    vectors = second.vectors[0] * math.nan, *second.vectors[1:]
    broken = {0: first, 1: second._replace(vectors=vectors)}
    found = align(broken).metrics
    for name in ("agreement", "distance", "tv"):
        assert math.isnan(found[f"align/{name}_conv"])
    assert math.isnan(found["align/agreement"])
    assert math.isnan(found["align/distance"])
    assert found["align/distance_fc1"] == align({0: first, 1: second}).metrics["align/distance_fc1"]


def test_rounds_that_are_measured():
    probe = AlignmentProbe(every=2)
    assert [r for r in range(1, 6) if probe.measures(r, 5)] == [2, 4, 5]
    assert [r for r in range(1, 5) if AlignmentProbe(every=10).measures(r, 4)] == [4]


SMALL_MOBILENET = partial(mobilenet_v1_cifar, width_multiplier=0.125)
NETWORKS = {
    "conv": (digits_cnn, (1, 8, 8), {"depth": 1}),
    "linear": (partial(mlp, hidden=[20, 10]), (12,), {}),
    "dense boundary": (digits_cnn, (1, 8, 8), {"depth": 2, "boundary": "dense"}),
    "paired boundary": (digits_cnn, (1, 8, 8), {"depth": 2, "boundary_pairing": "paired"}),
    "paired linear boundary": (
        partial(mlp, hidden=[20, 10]),
        (12,),
        {"depth": 2, "boundary_pairing": "paired"},
    ),
    "paired depthwise boundary": (
        *(SMALL_MOBILENET, (3, 16, 16)),
        {"depth": 12, "layer_unit": "conv", "boundary_pairing": "paired"},
    ),
    "depthwise": (SMALL_MOBILENET, (3, 16, 16), {"depth": 20, "layer_unit": "conv"}),
}
SETS = ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9))


@pytest.mark.parametrize("kept", [((2, 3), (8, 9)), ((6, 7),), ((8, 9), (0, 1), (4, 5))])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_trimmed_network_has_the_wholes_preferences_at_the_same_neurons(name, kept):
    """For the classes that it knows; groups do not touch each other. The last case has groups in another order."""
    builder, shape, options = NETWORKS[name]
    spec = GroupSeparation(groups=5, trim=True, **options)
    torch.manual_seed(0)
    dense = builder(shape, 10)
    whole = spec(dense, SETS)
    own = spec(dense, SETS, kept)
    copy_into(own, take_rows(whole.state_dict(), rows_of(whole.group_rows(), SETS, kept)))
    images = torch.randn((10, 4, *shape), generator=torch.Generator().manual_seed(1))
    found = on_server_neurons(class_preferences(own, images), own, whole)
    expected = class_preferences(whole, images)
    assert found.layers == expected.layers
    classes = [c for group in kept for c in group]
    missing = [c for c in range(10) if c not in classes]
    lacking = 0
    for vectors, here, of_whole in zip(found.vectors, found.present, expected.vectors, strict=True):
        assert vectors.shape == of_whole.shape
        torch.testing.assert_close(
            vectors[here][:, classes], of_whole[here][:, classes], rtol=1e-4, atol=1e-6
        )
        assert not vectors[~here].any()
        assert not vectors[:, missing].any()
        # What a group lacks works in the whole network for other classes alone.
        assert not of_whole[~here][:, classes].any()
        lacking += int(~here.all())
    alone = class_preferences(own, images)
    given = dict(zip(alone.layers, alone.vectors, strict=True))
    for layer, vectors, here in zip(found.layers, found.vectors, found.present, strict=True):
        places = own_neurons(own, whole, layer)
        assert torch.equal(places >= 0, here)
        assert torch.equal(given[layer][places[here]], vectors[here])
    assert found.present[-1].nonzero().flatten().tolist() == sorted(classes)
    for layer, here in zip(found.layers[:-1], found.present[:-1], strict=True):
        share = len(kept) / 5 if f"{layer}.weight" in whole.group_rows() else 1
        assert here.double().mean() == pytest.approx(share), layer
    assert lacking >= 2


def test_networks_with_all_groups_stay_as_they_are():
    torch.manual_seed(0)
    dense = digits_cnn((1, 8, 8), 10)
    whole = GroupSeparation(groups=5)(dense, SETS)
    for network in (dense, whole):
        found = class_preferences(network, torch.randn(10, 1, 1, 8, 8))
        assert on_server_neurons(found, network, network) is found
        assert all(here.all() for here in found.present)


def test_encoding_maps_of_runs_with_other_clients_stand_side_by_side(tmp_path):
    """Every row has the id of its client; the server's alone is called so."""
    two = align({k: THREE[k] for k in (4, 7)})
    figure = encodings({"a": align(THREE), "b": align(THREE)}, ("x", "y"))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["4", "7", "9"]
    figure = encodings({"a": align(THREE), "b": two}, ("x", "y"))
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["4", "7"]
    alone = server_alone(THREE[4])
    assert (alone.client_ids, alone.metrics, alone.layers) == ((), {}, ("conv", "fc1"))
    figure = encodings({"a": align(THREE), "b": alone}, ("x", "y"))
    assert [label.get_text() for label in figure.axes[1].get_yticklabels()] == ["server"]
    assert figure.axes[1].images[0].get_array().tolist() == [[0, 1]]
    draw_encodings(tmp_path / "map.png", {"a": two}, ("x", "y"))
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
