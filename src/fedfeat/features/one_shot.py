"""Fusing trained networks without training in between: PFNM (ICML 2019) and OT fusion (NeurIPS 2020).

PFNM is that of the authors' code, IBM/probabilistic-federated-neural-matching; OT fusion has the distances of weights
as its cost, not those of activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment, linprog
from scipy.sparse import eye_array, kron, vstack
from torch import Tensor

from fedfeat.features.matching import BIAS_MEAN, BBPMap, match_rows
from fedfeat.features.matching_records import Matched, Prior
from fedfeat.features.neurons import Layer, layer_rows, mix_inputs, rows_layer, spread_inputs
from fedfeat.params import full


class Fused(NamedTuple):
    """A network matched from those of clients.

    Attributes:
        layers: Its layers, first to last.
        assignments: For each hidden layer and client, see `matching.Matched`.
    """

    layers: list[Layer]
    assignments: list[tuple[Tensor, ...]]


def pfnm(
    clients: Sequence[Sequence[Layer]],
    class_counts: Tensor,
    generator: np.random.Generator,
    how: BBPMap | None = None,
    former: Sequence[Sequence[Tensor]] = (),
) -> Fused:
    """Match multilayer perceptrons, from the top hidden layer down.

    A neuron is its bias and its outgoing weights, in the lowest layer its incoming ones too. On the weights to a class
    a client's precision is multiplied by its share in the examples of that class.

    Args:
        clients: Each client's linear layers, all with bias; hidden widths may differ.
        class_counts: Training examples per client and class (J, C).
        generator: Draws the order of clients in each sweep.
        how: Hyperparameters; those of the paper's code (all 1) where None.
        former: Assignments of an earlier matching of the same clients, to start from; empty for none.
    """
    how = how or BBPMap(gamma=1.0)
    like = clients[0][-1].weight
    counts = class_counts.to(full(like))  # half precision counts to 256
    shares = counts / counts.sum(0).clamp(min=1)
    outgoing, trust = [net[-1].weight.T for net in clients], shares
    upper_bias = _output_bias([net[-1] for net in clients], shares, how).to(like)
    layers: list[Layer] = []
    assignments: list[tuple[Tensor, ...]] = []
    for depth in reversed(range(len(clients[0]) - 1)):
        rows, before = _rows(clients, depth, outgoing), former[depth] if former else None
        matched, (incoming, bias, out_of) = _match(rows, trust, generator, how, before)
        layers.insert(0, Layer(out_of.T.contiguous(), upper_bias))
        assignments.insert(0, matched.assignments)
        upper_bias, trust = bias[:, 0], counts.new_ones(len(clients), len(matched.counts))
        outgoing = [
            spread_inputs(net[depth].weight.T, assignment, len(matched.counts))
            for net, assignment in zip(clients, matched.assignments, strict=True)
        ]
    return Fused([Layer(incoming, upper_bias), *layers], assignments)


def _rows(clients: Sequence[Sequence[Layer]], depth: int, outgoing: Sequence[Tensor]) -> list[Tensor]:
    """Give each client's neurons of a hidden layer: incoming weights if it is the lowest, bias, outgoing weights."""
    return [
        torch.cat([*([net[0].weight] if depth == 0 else []), _bias(net[depth])[:, None], out], dim=1)
        for net, out in zip(clients, outgoing, strict=True)
    ]


def _match(
    rows: Sequence[Tensor],
    trust: Tensor,
    generator: np.random.Generator,
    how: BBPMap,
    former: Sequence[Tensor] | None,
) -> tuple[Matched, tuple[Tensor, ...]]:
    """Match rows of incoming weights, bias and outgoing weights, these with the trust (J, O); give the three parts."""
    num_out = trust.shape[1]
    num_in = rows[0].shape[1] - 1 - num_out
    mean = trust.new_zeros(num_in + 1 + num_out, dtype=torch.float64)
    mean[num_in] = BIAS_MEAN
    prior = Prior(mean, torch.full_like(mean, 1 / how.sigma02))
    precisions = [torch.cat([mean.new_ones(num_in + 1), part.double()]) / how.sigma2 for part in trust]
    matched = match_rows(rows, precisions, prior, generator, how, former)
    parts = matched.rows.split([num_in, 1, num_out], dim=1)
    # Copies, because files of tensors take no views.
    return matched, tuple(part.clone(memory_format=torch.contiguous_format) for part in parts)


def _output_bias(heads: Sequence[Layer], shares: Tensor, how: BBPMap) -> Tensor:
    """Average the biases of the classes (C,) with the clients' shares (J, C), as `match_rows` does atoms."""
    sums = sum(share * _bias(head) for share, head in zip(shares, heads, strict=True)) / how.sigma2
    precisions = shares.sum(0) / how.sigma2
    if how.shrink:
        return (sums + BIAS_MEAN / how.sigma02) / (precisions + 1 / how.sigma02)
    return (sums / precisions).where(precisions > 0, BIAS_MEAN)


def _bias(layer: Layer) -> Tensor:
    if layer.bias is None:
        raise ValueError("Every layer of a network for PFNM must have a bias, but one has none.")
    return layer.bias


def ot_align(layers: Sequence[Layer], anchor: Sequence[Layer]) -> list[Layer]:
    """Bring a network's neurons to the places of an anchor's; OT fusion is the mean of the two.

    Layer by layer, the first hidden one first: inputs follow the layer below, then neurons are transported at the
    cost of the Euclidean distances of their rows. Of more than two networks each is aligned to the same anchor.

    Args:
        layers: The network's layers, first to last; its hidden widths may differ from the anchor's.
        anchor: Layers of the same number and kinds.

    Returns:
        Layers of the anchor's shapes.
    """
    aligned: list[Layer] = []
    mix: Tensor | None = None
    for index, (own, other) in enumerate(zip(layers, anchor, strict=True)):
        weight = own.weight if mix is None else mix_inputs(own.weight, mix)
        moved = Layer(weight, own.bias)
        if index < len(layers) - 1:
            plan = transport(torch.cdist(layer_rows(moved).double(), layer_rows(other).double()))
            # Each of the anchor's neurons is a weighted mean, with weights that sum to 1.
            mix = plan / plan.sum(0)
            # The last layer's outputs are classes, which have their places.
            moved = rows_layer((mix.T @ layer_rows(moved).double()).to(weight), moved)
        aligned.append(moved)
    return aligned


def transport(cost: Tensor) -> Tensor:
    """Find the cheapest plan that moves uniform mass to uniform mass, exactly, float64 (n, m) with sum 1.

    Equal widths are an assignment, others a linear programme with n * m variables.

    Args:
        cost: Of each pair (n, m).
    """
    n, m = cost.shape
    values = cost.double().cpu().numpy()
    if n == m:
        plan = np.zeros((n, m))
        plan[linear_sum_assignment(values)] = 1 / n
    else:
        # Whole masses, n * m in all, so that the two sides agree exactly.
        sums = vstack(
            [kron(eye_array(n), np.ones((1, m))), kron(np.ones((1, n)), eye_array(m))], format="csr"
        )
        masses = np.repeat([m, n], [n, m])
        found = linprog(values.ravel(), A_eq=sums, b_eq=masses, method="highs")
        if found.x is None:
            raise ValueError(f"The transport of {n} to {m} neurons was not solved: {found.message}")
        plan = found.x.reshape(n, m) / (n * m)
    return torch.from_numpy(plan).to(cost.device)
