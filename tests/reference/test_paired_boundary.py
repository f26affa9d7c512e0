"""The mean of a paired boundary by loops over slices in double precision, and where it is that of a shared one."""

import numpy as np
import pytest
import torch
from grouped_rounds import Setting, federation_of, grouped_data

from fedfeat import tree
from fedfeat.algorithms.fed2 import Fed2Server
from fedfeat.clients.networks import separated
from fedfeat.models.blocks import conv_block, fc_blocks
from fedfeat.models.grouped import GroupSeparation
from fedfeat.models.network import Network
from fedfeat.models.policy import tensor_policies
from fedfeat.types import Federation, Update, Weights

# Four classes in three groups; who of three clients holds how many examples of each class.
GROUPS = ([1], [0, 3], [2])
COUNTS = np.array([[2, 0, 0, 1], [0, 5, 4, 0], [1, 1, 1, 5]])
SLICES = {"nearest": (2, 2, 2), "uneven": (3, 2, 2)}
ROUNDS = 4


def base():
    """7 channels each: the first layer is everyone's, the second is cut into slices, the third grouped."""
    blocks = [(f"conv{i}", conv_block(n, 7, 1)) for i, n in enumerate((2, 7, 7), start=1)]
    return Network(blocks, fc_blocks(14, [], 4), (2, 1, 2), 4)


def seeded(make):
    torch.manual_seed(5)
    return make()


def federation(trim, width_policy):
    """The networks and the server's in double precision."""
    spec = GroupSeparation(
        **{"depth": 2, "class_map": list(GROUPS), "boundary_pairing": "paired"},
        **{"trim": trim, "width_policy": width_policy},
    )
    networks = separated(spec, base, seeded, COUNTS, (), 0)
    model = networks.build().double()
    return model, Federation(3, COUNTS.sum(1), COUNTS, tensor_policies(model), networks)


def held(client):
    return [g for g, classes in enumerate(GROUPS) if COUNTS[client, classes].any()]


def cut(name, tensor, widths):
    """A tensor's part of each group that it has rows of, or None where it is everyone's."""
    if name.startswith("encoder.conv1.") or name.endswith("num_batches_tracked"):
        return None
    sizes = [len(classes) for classes in GROUPS] if name.startswith("head.") else widths
    # Grouped layers of unequal widths are two, one of the first group and one of the others.
    first, last = (0, 1) if ".runs.0." in name else (1, 3) if ".runs.1." in name else (0, 3)
    return dict(zip(range(first, last), tensor.split(sizes[first:last]), strict=True))


def trained(name, received, client, round_idx, widths, trim):
    """What a client sends of what it received: every number moved by its own random step."""
    generator = torch.Generator().manual_seed(97 * round_idx + 7 * client + len(name))
    whole = torch.randn(received.shape, generator=generator, dtype=torch.float64)
    moved = received + (whole if received.is_floating_point() else client + 1)
    parts = cut(name, moved, widths)
    return moved if parts is None or not trim else torch.cat([parts[g] for g in held(client)])


def by_hand(old, cohort, round_idx, widths, pairing, trim):
    """One round of means over slices; weights are examples."""
    result = {}
    for name, tensor in old.items():
        sent = {k: trained(name, tensor, k, round_idx, widths, False) for k in cohort}
        sizes = {k: int(COUNTS[k].sum()) for k in cohort}
        if name.endswith("num_batches_tracked"):
            result[name] = max(sent.values())
        elif cut(name, tensor, widths) is None:
            result[name] = sum(sizes[k] * sent[k] for k in cohort) / sum(sizes.values())
        else:
            parts = cut(name, tensor, widths)
            for g in parts:
                here = [k for k in cohort if g in held(k) or (pairing == "all" and not trim)]
                if here:
                    own = (sizes[k] * cut(name, sent[k], widths)[g] for k in here)
                    parts[g] = sum(own) / sum(sizes[k] for k in here)
            result[name] = torch.cat(list(parts.values()))
    return result


@pytest.mark.parametrize("pairing", ["presence", "all"])
@pytest.mark.parametrize(("trim", "policy"), [(False, "nearest"), (False, "uneven"), (True, "nearest")])
def test_slices_are_averaged_with_their_groups(pairing, trim, policy):
    """Client 0 has no class of groups 0 and 2, client 1 none of group 1; a round without them keeps the old value."""
    model, about = federation(trim, policy)
    widths = list(SLICES[policy])
    server = Fed2Server(pairing)
    state = server.init(model, about)
    assert [len(held(k)) for k in range(3)] == [1, 2, 3]
    expected = dict(state.params)
    for round_idx, cohort in enumerate([(0, 1, 2), (0, 1), (1,), (0, 2)][:ROUNDS]):
        updates = []
        for k in cohort:
            received = server.broadcast(state, k).params
            rebuilt = {name: tensor.clone() for name, tensor in expected.items()}
            for name, own in received.items():
                parts = cut(name, rebuilt[name], widths)
                whole = parts is None or not trim
                wanted = rebuilt[name] if whole else torch.cat([parts[g] for g in held(k)])
                torch.testing.assert_close(own, wanted, rtol=0, atol=1e-14)
            sent = {n: trained(n, expected[n], k, round_idx, widths, trim) for n in expected}
            updates.append(Update(k, int(COUNTS[k].sum()), Weights(sent), None, {}))
        state = server.aggregate(state, updates)
        expected = by_hand(expected, cohort, round_idx, widths, pairing, trim)
        for name, found in state.params.items():
            assert found.dtype == expected[name].dtype
            torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-14, msg=name)


@pytest.mark.parametrize("trim", [False, True])
def test_where_every_client_has_all_classes_pairing_the_boundary_changes_nothing(trim, tmp_path):
    data = grouped_data()
    for k in range(3):
        data.dataset.train.labels[data.split.train.of(k)[:3]] = torch.tensor([0, 1, 2])
    hashes = {
        tree.sha256(
            federation_of(Setting(trim=trim, boundary=boundary), tmp_path / boundary, data=data, num_rounds=4)
            .run()[0][-1]
            .state.params
        )
        for boundary in ("shared", "paired")
    }
    assert len(hashes) == 1


def test_where_classes_differ_it_changes_the_boundary(tmp_path):
    found = [
        federation_of(Setting(boundary=boundary), tmp_path / boundary, num_rounds=1).run()[0][-1].state.params
        for boundary in ("shared", "paired")
    ]
    assert {name for name in found[0] if not torch.equal(found[0][name], found[1][name])} == {
        name for name in found[0] if name.startswith("encoder.conv1.") and "num_batches" not in name
    }
