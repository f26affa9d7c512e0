"""Which client has which level."""

from collections import Counter

import pytest

from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.models.mlp import mlp

LEVELS = (1.0, 0.5, 0.25)


def networks(**options):
    return WidthNetworks(WidthLevels(**({"levels": LEVELS} | options)), lambda: mlp((4,), 3, hidden=[8]), 3)


def test_levels_go_by_the_clients_number_whatever_the_round():
    found = networks()
    for round_idx in (0, 5):
        assert [found.key(k, round_idx) for k in range(5)] == [None, 0.5, 0.25, None, 0.5]
    twice = networks(levels=(0.5, 0.25, 0.25))
    assert [twice.key(k) for k in range(3)] == [0.5, 0.25, 0.25]
    assert [found.build(key).last_layer.in_features for key in (None, 0.5, 0.25)] == [8, 4, 2]
    assert found.build().rate == 1.0


def test_dynamic_levels_are_drawn_at_the_address_of_the_clients_turn():
    found = networks(dynamic=True)
    drawn = {(k, r): found.key(k, r) for k in range(30) for r in range(30)}
    assert drawn == {(k, r): networks(dynamic=True).key(k, r) for k in range(30) for r in range(30)}
    counts = Counter(drawn.values())
    assert counts.keys() == {None, 0.5, 0.25}
    assert max(abs(count - 300) for count in counts.values()) < 60
    assert len({tuple(drawn[k, r] for k in range(30)) for r in range(30)}) == 30
    assert len({tuple(drawn[k, r] for r in range(30)) for k in range(30)}) == 30


def test_the_sizes_of_the_levels_are_told():
    assert networks().describe() == (
        "structure: level 1: 67 parameters, level 0.5: 35 parameters, level 0.25: 19 parameters"
    )


@pytest.mark.parametrize("scaler", [True, False])
def test_the_scaler_is_of_the_narrower_networks(scaler):
    found = networks(scaler=scaler)
    hooks = [sum(bool(m._forward_hooks) for m in found.build(key).modules()) for key in (None, 0.5)]
    assert hooks == [0, int(scaler)]
