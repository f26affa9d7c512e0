"""Matching the neurons of clients, layer by layer: BBP-MAP, behind PFNM (ICML 2019) and FedMA (ICLR 2020).

A neuron is a row: its incoming weights, flattened, with the bias last. A global neuron (an atom) is a Gaussian whose
evidence is the rows matched to it; how many atoms there are is open, with an Indian buffet process as prior. The
formulas are those of the authors' code (IBM/FedMA, matching/pfnm.py), with one difference: the prior mean of the bias
stands at the bias, which there, from the second layer on, is at the first weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedfeat.config.conditions import Natural, NotNegative, Positive
from fedfeat.features.matching_records import Atoms, Evidence, Matched, Prior
from fedfeat.params import full

BIAS_MEAN = 0.1
"""Prior mean of a bias; that of a weight is 0 (IBM/FedMA, ``mu0_bias``)."""
MAX_POPULARITY = 10
"""Counts above it weigh no more (IBM/FedMA, ``compute_cost``)."""
MAX_ATOMS = 700
"""Layers this wide grow by one atom at a time, unless a client has more neurons (IBM/FedMA, ``compute_cost``)."""


@dataclass(frozen=True)
class BBPMap:
    """Hyperparameters of the matching; the defaults are FedMA's, PFNM's are ``gamma=1``.

    Attributes:
        gamma: Mass of the Indian buffet process; larger ones open more global neurons.
        sigma2: Variance of a client's weights around those of the global neuron.
        sigma02: Variance of the global neurons' weights around the prior mean.
        sweeps: How often each client is matched again, at most: a sweep that moves no neuron is the last.
        popularity_coef: Factor of popularity's log odds: 1 in the authors' code, 2 in their derivation.
        shrink: Take the MAP estimate, which the prior pulls to its mean; otherwise the mean of the matched rows.
    """

    gamma: Positive = 7.0
    sigma2: Positive = 1.0
    sigma02: Positive = 1.0
    sweeps: Natural = 5
    popularity_coef: NotNegative = 1.0
    shrink: bool = True

    def kept_share(self, num_clients: int) -> float:
        """Give the part of a neuron's weights that is left where all clients match in it, 1 without shrinking."""
        return num_clients / (num_clients + self.sigma2 / self.sigma02) if self.shrink else 1.0


def match_layer(
    rows: Sequence[Tensor], generator: np.random.Generator, how: BBPMap | None = None, bias: bool = True
) -> Matched:
    """Match one layer of all clients.

    Args:
        rows: Each client's neurons (L_j, d), see `neurons.layer_rows`; widths may differ, d may not.
        generator: Draws the order of clients in each sweep.
        how: Hyperparameters; those of FedMA where None.
        bias: Whether the last column is a bias.
    """
    how = how or BBPMap()
    mean = rows[0].new_zeros(rows[0].shape[1], dtype=torch.float64)
    if bias:
        mean[-1] = BIAS_MEAN
    prior = Prior(mean, mean.new_full((1,), 1 / how.sigma02))
    return match_rows(rows, [mean.new_full((1,), 1 / how.sigma2)] * len(rows), prior, generator, how)


def match_rows(
    rows: Sequence[Tensor],
    precisions: Sequence[Tensor],
    prior: Prior,
    generator: np.random.Generator,
    how: BBPMap,
    former: Sequence[Tensor] | None = None,
) -> Matched:
    """Match rows whose clients may trust some entries more than others.

    Clients are added one by one, the widest first; in every sweep each is taken out and matched again.

    Args:
        rows: Each client's neurons (L_j, d).
        precisions: Each client's precision of all entries (1,) or of each (d,); 0 is no evidence.
        prior: Of the global neurons.
        generator: Draws the order of clients in each sweep.
        how: Hyperparameters; the two variances have already gone into ``precisions`` and ``prior``.
        former: Assignments of an earlier matching of the same clients; sweeps start from these where they are given.
    """
    like, rows = rows[0], [full(own) for own in rows]
    clients = [Evidence(r * p.to(r), p.to(r)) for r, p in zip(rows, precisions, strict=True)]
    start = Evidence((prior.mean * prior.precision).to(rows[0]), prior.precision.to(rows[0]))
    atoms, assignments = _first(clients, start, how) if former is None else _again(clients, start, former)
    for _ in range(how.sweeps):
        settled = True
        for j in generator.permutation(len(clients)):
            atoms, moved_to = _take_out(atoms, clients[j], assignments[j])
            assignments = [moved_to[assignment] for assignment in assignments]
            before, others = assignments[j], len(atoms.counts)
            atoms, assignments[j] = _put_in(atoms, clients[j], start, len(clients), how)
            # Which of the new atoms a row opens makes no difference.
            settled &= torch.equal(before, assignments[j].where(assignments[j] < others, -1))
        if settled:
            break
    found = _estimate(clients, assignments, len(atoms.counts), prior, how.shrink)
    return Matched(tuple(assignments), found.to(like), atoms.counts)


def _first(clients: Sequence[Evidence], start: Evidence, how: BBPMap) -> tuple[Atoms, list[Tensor]]:
    """Add the clients one by one, the widest first."""
    atoms = _new_atoms(start, 0)
    assignments = [torch.empty(0, dtype=torch.int64)] * len(clients)
    for j in sorted(range(len(clients)), key=lambda j: -len(clients[j].sums)):
        atoms, assignments[j] = _put_in(atoms, clients[j], start, len(clients), how)
    return atoms, assignments


def _again(
    clients: Sequence[Evidence], start: Evidence, former: Sequence[Tensor]
) -> tuple[Atoms, list[Tensor]]:
    """Put all clients where they were."""
    assignments = [assignment.to(start.sums.device) for assignment in former]
    atoms = _new_atoms(start, 1 + max(int(assignment.max()) for assignment in assignments))
    for client, assignment in zip(clients, assignments, strict=True):
        _add(atoms, client, assignment, 1)
    return atoms, assignments


def benefits(client: Evidence, atoms: Atoms, start: Evidence, num_clients: int, how: BBPMap) -> Tensor:
    """Compute what each assignment of a client's rows adds to the log posterior: L atoms, M new ones, (L_j, L + M).

    Args:
        client: Its rows.
        atoms: Global neurons, built without the client.
        start: What a new atom starts with: prior mean times precision (d,), and precision.
        num_clients: J.
        how: Hyperparameters.
    """
    popular = atoms.counts.clamp(max=MAX_POPULARITY).to(client.sums.dtype)
    old = _fit(client, atoms.sums, atoms.precisions)
    old += how.popularity_coef * (popular / (num_clients - popular)).log()
    width, num_atoms = len(client.sums), len(atoms.counts)
    # At least one column for each row, so that every neuron finds a place.
    num_new = min(width, max(MAX_ATOMS - num_atoms, width - num_atoms, 1))
    ranks = torch.arange(1, num_new + 1).to(old)
    new = _fit(client, start.sums[None], start.precision[None])
    return torch.cat([old, new + 2 * (how.gamma / num_clients / ranks).log()], dim=1)


def _fit(client: Evidence, sums: Tensor, precisions: Tensor) -> Tensor:
    """Compute sum_d (S + v)^2 / (P + p) - S^2 / P for all pairs of a row v and an atom S, (L_j, L).

    The square is expanded, which leaves one product of matrices, and one more where entries differ in precision.
    """
    v, p = client
    joint = precisions + p
    if len(p) == 1:
        cross, squares = 2 * (v @ sums.T) / joint.T, (v * v).sum(1, keepdim=True) / joint.T
        return cross + squares + (sums * sums).sum(1) * (1 / joint - 1 / precisions).T
    cross, squares = 2 * v @ (sums / joint).T, (v * v) @ (1 / joint).T
    return cross + squares + (sums * sums * (1 / joint - 1 / precisions)).sum(1)


def _put_in(
    atoms: Atoms, client: Evidence, start: Evidence, num_clients: int, how: BBPMap
) -> tuple[Atoms, Tensor]:
    """Match a client to the atoms: those with it, and its assignment."""
    gain = benefits(client, atoms, start, num_clients, how)
    assignment = torch.from_numpy(linear_sum_assignment(gain.cpu().numpy(), maximize=True)[1]).to(gain.device)
    num_atoms = len(atoms.counts)
    new = assignment >= num_atoms
    num_new = int(new.sum())
    assignment[new] = torch.arange(num_atoms, num_atoms + num_new, device=gain.device)
    grown = Atoms(*(torch.cat(pair) for pair in zip(atoms, _new_atoms(start, num_new), strict=True)))
    _add(grown, client, assignment, 1)
    return grown, assignment


def _take_out(atoms: Atoms, client: Evidence, assignment: Tensor) -> tuple[Atoms, Tensor]:
    """Take a client out, in place: the atoms that others have, and the new place of each former atom, or -1."""
    _add(atoms, client, assignment, -1)
    kept = atoms.counts > 0
    return Atoms(*(part[kept] for part in atoms)), (kept.cumsum(0) - 1).where(kept, -1)


def _new_atoms(start: Evidence, num_atoms: int) -> Atoms:
    counts = torch.zeros(num_atoms, dtype=torch.int64, device=start.sums.device)
    return Atoms(start.sums.repeat(num_atoms, 1), start.precision.repeat(num_atoms, 1), counts)


def _add(atoms: Atoms, client: Evidence, assignment: Tensor, sign: int) -> None:
    """Add a client's evidence to its atoms, or subtract it, in place."""
    atoms.sums.index_add_(0, assignment, client.sums, alpha=sign)
    atoms.precisions[assignment] += sign * client.precision
    atoms.counts[assignment] += sign


def _estimate(
    clients: Sequence[Evidence], assignments: Sequence[Tensor], num_atoms: int, prior: Prior, shrink: bool
) -> Tensor:
    """Give the atoms' weights, float64 (L, d), free of the rounding of what has been added and subtracted."""
    atoms = _new_atoms(Evidence(*(torch.zeros_like(part).double() for part in prior)), num_atoms)
    for client, assignment in zip(clients, assignments, strict=True):
        _add(atoms, Evidence(*(part.double() for part in client)), assignment, 1)
    if shrink:
        return (atoms.sums + prior.mean * prior.precision) / (atoms.precisions + prior.precision)
    # An entry of which no client knows anything has the prior mean.
    return (atoms.sums / atoms.precisions).where(atoms.precisions > 0, prior.mean)
