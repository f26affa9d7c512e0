"""FedRolex: its windows, and where it is HeteroFL; its rounds by hand are in `test_heterofl`."""

from functools import partial

import torch
from harness import parties
from linear_rounds import goes_on
from width_rounds import Setting, federation_of

from fedfeat import tree
from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLClient, HeteroFLServer
from fedfeat.clients.width_levels import WidthLevels, WidthNetworks
from fedfeat.models.mlp import mlp


def of_one_layer(server, folder, levels=(0.3,), width=7, **plan):
    networks = WidthNetworks(WidthLevels(levels), lambda: mlp((4,), 3, hidden=[width]), 0)
    return parties(folder, client=HeteroFLClient, server=server, networks=networks, **plan)


def trained(server, folder, rounds, **options):
    """For each round which channels of the hidden layer were sent and then changed."""
    federation = of_one_layer(server, folder, num_rounds=rounds, **options)
    torch.manual_seed(0)
    numbered = federation.start()
    found = []
    for before, after in zip(steps := [numbered, *federation.run()[0][1:]], steps[1:], strict=False):
        sent = federation.server.broadcast(before.state, 0).params["encoder.fc1.linear.weight"]
        whole = before.state.params["encoder.fc1.linear.weight"]
        places = [next(i for i, row in enumerate(whole) if torch.equal(row, own)) for own in sent]
        changed = (after.state.params["encoder.fc1.linear.weight"] != whole).any(1).nonzero().flatten()
        assert set(changed.tolist()) <= set(places)
        found.append(places)
    return found


def test_in_as_many_rounds_as_channels_each_is_sent_alike(tmp_path):
    """Level .3 of 7 channels has 3."""
    windows = trained(FedRolexServer(), tmp_path, 14)
    assert windows[:6] == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5], [4, 5, 6], [5, 6, 0]]
    assert windows[7:] == windows[:7]
    for first in (0, 3):
        counts = torch.bincount(torch.tensor(windows[first : first + 7]).flatten(), minlength=7)
        assert counts.tolist() == [3] * 7


def test_heterofl_sends_the_first_ones_in_every_round(tmp_path):
    assert trained(HeteroFLServer(), tmp_path, 3) == [[0, 1, 2]] * 3


def test_of_one_round_it_is_heterofl_bit_for_bit(tmp_path):
    hashes = []
    for rolling, rounds in ((False, 1), (True, 1), (False, 2), (True, 2)):
        federation = federation_of(Setting(rolling=rolling, rounds=rounds), tmp_path / f"{rolling}{rounds}")
        hashes.append(tree.sha256(federation.run()[0][-1].state.params))
    assert hashes[0] == hashes[1]
    assert hashes[2] != hashes[3]


def test_as_many_bytes_are_sent_in_every_round(tmp_path):
    federation = of_one_layer(FedRolexServer(), tmp_path, num_rounds=9)
    records = federation.run()[1]
    each = 3 * 4 * (3 * (4 + 1) + 3 * (3 + 1))  # three clients, 3 of 7 neurons, float32
    assert [r.metrics["comm/up_bytes"] for r in records] == [each * i for i in range(10)]


def test_a_run_goes_on_from_its_middle_with_its_windows(tmp_path):
    setting = Setting((0.5, 0.3), rolling=True, rounds=5, cohort_size=2)
    assert goes_on(partial(federation_of, setting), tmp_path / "cut", tmp_path / "whole")
