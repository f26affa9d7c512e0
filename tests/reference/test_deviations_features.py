"""The feature-level methods beside their authors' code, where docs/deviations.md says that the two differ."""

from functools import partial

import numpy as np
import pytest
import torch
from deviating import STEPS, gap, pair_of, rounds_of
from fusion_rounds import Setting as Fusion
from fusion_rounds import federation_of as fusing
from harness import LR, SIZES, examples_of, gradient, make_data
from henn_rounds import Setting as Henn
from henn_rounds import federation_of as aligning
from linear_rounds import ZERO, added, mean
from scipy.optimize import linear_sum_assignment
from torch.nn import functional

from fedfeat.algorithms.fedprox import FedProxClient
from fedfeat.algorithms.fedrep import FedRepClient
from fedfeat.features.matching import BBPMap, match_layer, match_rows
from fedfeat.features.matching_records import Prior
from fedfeat.features.neurons import Layer
from fedfeat.features.one_shot import ot_align
from fedfeat.models.lstm import Scramble
from fedfeat.models.mlp import mlp

DATA = make_data()
PRECISE = {"precision": "64-true", "num_rounds": 3}


def far(found, expected):
    """The largest distance of the named tensors."""
    return max(float((tensor - expected[name]).abs().max()) for name, tensor in found.items())


def test_the_anchor_of_fedprox_that_sparse_gradients_overwrite(tmp_path):
    """``mu (w - w_t) + gradient`` is kept where w_t was, so from the second step on the term pulls elsewhere."""
    found = rounds_of(tmp_path, client=partial(FedProxClient, mu=1.0), num_rounds=1)[1][-1]
    ends = {"dense": [], "sparse": []}
    for k in range(3):
        for name, own in ends.items():
            y, anchor = ZERO, ZERO
            for _ in range(STEPS):
                step = added((1, gradient(*y, *examples_of(DATA, k))), (1.0, y), (-1.0, anchor))
                anchor = step if name == "sparse" else anchor
                y = added((1, y), (-LR, step))
            own.append(y)
    ours, dense, sparse = pair_of(found.params), *(mean(own, SIZES) for own in ends.values())
    assert gap(ours, dense) < 1e-12
    assert gap(ours, sparse) == pytest.approx(0.162, abs=1e-3)


def test_the_prior_mean_of_a_bias_that_stands_at_the_first_weight():
    """Two equal clients: an atom is (prior + 2 rows) / 3, so a third of .1 is at the wrong place."""
    rows = 3 * torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours = match_layer([rows, rows], np.random.default_rng(0))
    first = rows.new_tensor([0.1, 0, 0, 0, 0])
    one = first.new_ones(1)
    by_code = match_rows([rows, rows], [one, one], Prior(first, one), np.random.default_rng(0), BBPMap())
    expected = rows.new_zeros(3, 5)
    expected[:, 0], expected[:, -1] = 0.1 / 3, -0.1 / 3
    torch.testing.assert_close(by_code.rows - ours.rows, expected, rtol=0, atol=1e-12)


def fused_by_code(layers, anchor, *, cost=lambda d: d, aligned=True):
    """The mean of sidak/otfusion: outputs are transported as well; by a flag, inputs are aligned or not."""
    found, mix = [], None
    for own, other in zip(layers, anchor, strict=True):
        moved = own.weight if mix is None else own.weight @ mix
        places = linear_sum_assignment(cost(torch.cdist(moved, other.weight)).numpy())
        mix = moved.new_zeros(len(moved), len(moved))
        mix[places] = 1
        found.append((mix.T @ (moved if aligned else own.weight) + other.weight) / 2)
    return found


def fused(layers, anchor):
    return [(a.weight + b.weight) / 2 for a, b in zip(ot_align(layers, anchor), anchor, strict=True)]


def test_outputs_that_are_transported_swap_classes():
    draw = torch.Generator().manual_seed(0)
    anchor = [
        Layer(torch.randn(shape, generator=draw, dtype=torch.float64), None) for shape in ((5, 4), (2, 5))
    ]
    other = [anchor[0], Layer(anchor[1].weight.flip(0), None)]
    ours, by_code = fused(other, anchor)[-1], fused_by_code(other, anchor)[-1]
    torch.testing.assert_close(ours[0], ours[1])
    torch.testing.assert_close(by_code, anchor[1].weight)
    assert float((ours - by_code).abs().max()) == pytest.approx(0.659, abs=1e-3)


def test_without_its_flag_the_weights_of_a_copy_are_averaged_with_inputs_in_another_order():
    draw = torch.Generator().manual_seed(0)
    anchor = [
        Layer(torch.randn(shape, generator=draw, dtype=torch.float64), None) for shape in ((5, 4), (2, 5))
    ]
    order = torch.tensor([2, 0, 1, 4, 3])
    copy = [Layer(anchor[0].weight[order], None), Layer(anchor[1].weight[:, order], None)]
    torch.testing.assert_close(fused(copy, anchor)[-1], anchor[1].weight)
    torch.testing.assert_close(fused_by_code(copy, anchor)[-1], anchor[1].weight)
    by_default = fused_by_code(copy, anchor, aligned=False)[-1]
    assert float((by_default - anchor[1].weight).abs().max()) == pytest.approx(0.652, abs=1e-3)


def test_its_default_cost_pairs_other_neurons():
    """Distances (0, 1.9) against (1, 1): the sum of distances takes the first, that of log(1 + squares) the second."""

    def layers(*points):
        return [Layer(torch.tensor(rows, dtype=torch.float64), None) for rows in (points, [[1.0, 1.0]])]

    y = 0.95
    x = (1 - y**2) ** 0.5
    own, anchor = layers((0.0, 0.0), (x, y)), layers((x, -y), (0.0, 0.0))
    ours = fused(own, anchor)[0]
    by_code = fused_by_code(own, anchor, cost=lambda d: (d**2).log1p())[0]
    torch.testing.assert_close(ours, torch.tensor([[x, 0.0], [0.0, 0.0]], dtype=torch.float64))
    torch.testing.assert_close(by_code, torch.tensor([[x, -y], [x, y]], dtype=torch.float64) / 2)


FUSED = {
    "a mean without weights": ({"weighting": "uniform"}, 0.053),
    "absent clients keep their model": ({"stale_clients": True}, 0.091),
}


@pytest.mark.parametrize("name", FUSED)
def test_readings_of_fedfusion(name, tmp_path):
    change, distance = FUSED[name]
    setting = Fusion(ema=0.9, lambda_init=0.0, cohort_size=2)
    ours, other = (fusing(own, tmp_path / str(i), **PRECISE).run()[0][-1].state.average.params
                   for i, own in enumerate((setting, setting._replace(**change))))  # fmt: skip
    assert far(ours, other) == pytest.approx(distance, abs=1e-3)


def test_the_frozen_half_of_the_evaluated_model_is_a_round_old(tmp_path):
    setting = Fusion(ema=0.0, lambda_init=0.5)
    losses = [[record.metrics["global/loss"] for record in fusing(own, tmp_path / str(i), **PRECISE).run()[1]]
              for i, own in enumerate((setting, setting._replace(eval_eg="self")))]  # fmt: skip
    assert losses[0][0] == losses[1][0]
    assert losses[0][-1] - losses[1][-1] == pytest.approx(0.0073, abs=1e-4)


HENN = {
    "outputs taken the other way round": (Henn(schedule="const"), {"repr_at": "code_swapped"}, 0.321),
    "a mean without weights": (Henn(schedule="const"), {"weighting": "uniform"}, 0.055),
    "kernels of the last cohort": (
        Henn(hetero=True, schedule="const"),
        {"kbar_over": "last_participants"},
        0.043,
    ),
}


@pytest.mark.parametrize("name", HENN)
def test_readings_of_fedhenn(name, tmp_path):
    setting, change, distance = HENN[name]
    ends = []
    for i, own in enumerate((setting, setting._replace(**change))):
        federation = aligning(own, tmp_path / str(i), **PRECISE)
        federation.run()
        ends.append({k: federation.store.get(k).memory.params for k in federation.store})
    assert max(far(ends[0][k], ends[1][k]) for k in ends[0]) == pytest.approx(distance, abs=1e-3)


def test_words_that_are_read_in_memory_order_are_of_several_tweets():
    """Of 4 tweets with 25 words of 300 numbers: the share of an LSTM's inputs that are of the tweet they stand for."""
    owner = torch.arange(4.0)[:, None, None].expand(4, 25, 300)
    scrambled = Scramble()(owner)
    assert scrambled.shape == (4, 300, 25)
    # What the source does to (25, 4, 300), its words first.
    assert torch.equal(scrambled, owner.transpose(0, 1).contiguous().view(300, 4, 25).transpose(0, 1))
    assert (scrambled == owner[:, :1, :1]).double().mean() == 0.25


def network():
    torch.manual_seed(3)
    return mlp((4,), 3, hidden=[5])


def fedrep_turn(params, k, *, zeros):
    """Two epochs on the head and two on the body; where gradients are zeroed and not removed, momentum goes on."""
    model = network().double()
    model.load_state_dict(params)
    x, y = map(torch.from_numpy, examples_of(DATA, k))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.5)
    for epoch in range(4):
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.startswith("head") == (epoch < 2))
        optimizer.zero_grad(set_to_none=not zeros)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def fedrep(folder, **plan):
    client = partial(FedRepClient, head_epochs=2, personal=["last"])
    arguments = {"build_model": network, "local_epochs": 4, "momentum": 0.5, "personal": True}
    return rounds_of(folder, client=client, **(arguments | plan))


def test_a_frozen_head_that_goes_on_by_its_momentum(tmp_path):
    """Zeros, not nothing, are what PyTorch's ``zero_grad`` left before version 2."""
    federation, _, _ = fedrep(tmp_path, num_rounds=1)
    start = {name: tensor.double() for name, tensor in network().state_dict().items()}
    for k, distance in enumerate((0.166, 0.128, 0.072)):
        head = federation.store.get(k).personal
        assert far(head, fedrep_turn(start, k, zeros=False)) < 1e-12
        assert far(head, fedrep_turn(start, k, zeros=True)) == pytest.approx(distance, abs=1e-3)


def test_the_first_head_of_a_client_is_not_the_mean_of_those_of_others(tmp_path):
    federation, _, cohorts = fedrep(tmp_path, num_rounds=2, cohort_size=1)
    (a,), (b,) = cohorts
    assert a != b
    start = {name: tensor.double() for name, tensor in network().state_dict().items()}
    first = fedrep_turn(start, a, zeros=False)
    head = federation.store.get(b).personal
    assert far(head, fedrep_turn(first | {name: start[name] for name in head}, b, zeros=False)) < 1e-12
    assert far(head, fedrep_turn(first, b, zeros=False)) == pytest.approx(0.281, abs=1e-3)
