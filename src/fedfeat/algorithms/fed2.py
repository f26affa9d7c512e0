"""Psi-Net and Fed2 (Yu et al., "Fed2: Feature-Aligned Federated Learning", KDD 2021), one method in two papers.

    structure (models/grouped.py): layers 1..s shared, the later ones in G groups; group g has the logits of M(g) only
    server: each round: send the shared part and the client's groups;  receive theta_k
            shared   <- mean over all k of the cohort
            group g  <- mean over I_g = {k : M(g) and the classes of k meet}   (Psi-Net Eqs. 7-8)
            a group that nobody in the cohort holds keeps its value
    client: E epochs of SGD on the cross-entropy over its logits;  return the shared part and its groups

Fed2's Eqs. 18-19 are the same, but for who is in I_g, which its text leaves open (methods/fed2.md#pairing): with
``pairing=all`` everyone who has the group. Psi-Net trims: with ``structure.trim=true`` a client's network lacks the
groups of classes that it does not hold (Psi-Net Eq. 6). Fed2 does not mention trimming. With
``structure.boundary_pairing=paired`` the slices of the last shared layer belong to the groups that read them. Batch
norm of the shared part averages scale, shift, running mean and variance with the shared part; group norm's scale and
shift go with their group (Psi-Net, section on normalisation). Two groups are a pair if their class sets are equal,
wherever they stand in a client's network.

The client half is any that speaks `Weights`: FedAvg's, FedProx's with its proximal term, ...
"""

from collections.abc import Hashable, Iterable
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedfeat.algorithms.paired_mean import PairedMean
from fedfeat.errors import ConfigError, UserError
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.models.grouped import GroupedNetwork
from fedfeat.models.grouped_layers import ClassSets
from fedfeat.models.policy import GROUPED, is_complete, keys_with, sent_keys
from fedfeat.params import WeightedMean, select, snapshot
from fedfeat.server import AveragingServer
from fedfeat.types import Federation, Setting, Update, Weights


class Fed2State(NamedTuple):
    """State of the server.

    Attributes:
        params: The tensors of the whole network that cross the wire.
        complete: Whether they are all of them, so that the server has a model to evaluate.
        class_sets: The classes of each group.
        group_of_row: For each grouped tensor, the group of each entry of its first dimension.
        own_sets: For each client, the classes of its groups in its network's order.
        counts: Training examples of each client for each group's classes, (K, G).
    """

    params: dict[str, Tensor]
    complete: bool
    class_sets: ClassSets
    group_of_row: dict[str, Tensor]
    own_sets: tuple[ClassSets, ...]
    counts: tuple[tuple[int, ...], ...]


class Fed2Server(AveragingServer):
    """Average the shared part over the cohort and each group over the clients that hold a class of it.

    Args:
        pairing: ``presence`` averages a group over clients that hold a class of it (Psi-Net Eq. 8), ``all`` over every
            client that has the group in its network (methods/fed2.md#pairing).
        weighting: Of the shared part: by ``samples``, or ``uniform`` as the papers' unweighted "Avg".
        group_weighting: Of a group: by ``samples`` of the client, ``uniform``, or ``class_count``, its samples of the
            group's classes.
    """

    accepts_unequal = True

    def __init__(
        self,
        pairing: Literal["presence", "all"] = "presence",
        weighting: Literal["samples", "uniform"] = "samples",
        group_weighting: Literal["samples", "uniform", "class_count"] = "samples",
    ) -> None:
        if pairing == "all" and group_weighting == "class_count":
            rule = "be another with algorithm.server.pairing=all, which counts those without a class of the group too"
            raise ConfigError.rule("algorithm.server.group_weighting", rule, group_weighting)
        self.pairing, self.weighting, self.group_weighting = pairing, weighting, group_weighting

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take group-separated networks only."""
        if not isinstance(model, GroupedNetwork):
            raise UserError(
                "algorithm/server=fed2 must have groups, but structure=none or separate=false has none."
            )

    def init(self, model: nn.Module, federation: Federation) -> Fed2State:
        """Start from the common initial model, a group-separated network."""
        assert isinstance(model, GroupedNetwork)
        sent = sent_keys(federation.policies)
        grouped = keys_with(federation.policies, GROUPED)
        sets = model.class_sets
        clients = range(len(federation.num_examples))
        counts = np.stack([federation.class_counts[:, list(classes)].sum(1) for classes in sets], 1)
        return Fed2State(
            params=snapshot(model, sent),
            complete=is_complete(federation.policies),
            class_sets=sets,
            group_of_row=select(model.group_rows(), grouped),
            own_sets=tuple(_own_sets(federation.networks.key(k), sets) for k in clients),
            counts=tuple(map(tuple, counts.tolist())),
        )

    def broadcast(self, state: Fed2State, client_id: int) -> Weights:
        """Send the shared part and the client's groups."""
        return Weights(take_rows(state.params, self.rows(state, client_id)))

    def aggregate(self, state: Fed2State, updates: Iterable[Update]) -> Fed2State:
        """Average; a round without an update changes nothing."""
        shared, groups = WeightedMean(), PairedMean(state.group_of_row, len(state.class_sets))
        for update in updates:
            params = update.payload.params
            client_id, count = update.client_id, update.num_examples
            shared.add({k: v for k, v in params.items() if k not in state.group_of_row}, self._weight(count))
            groups.add(params, self._group_weights(state, client_id, count), self.rows(state, client_id))
        means = groups.result(state.params) | ({} if shared.is_empty else shared.result())
        return state._replace(params={key: means.get(key, old) for key, old in state.params.items()})

    def global_payload(self, state: Fed2State) -> Weights | None:
        """Give the whole model, all groups present, where nothing of it is personal."""
        return Weights(state.params) if state.complete else None

    def params(self, state: Fed2State) -> dict[str, Tensor]:
        """Give the tensors of the whole network that cross the wire."""
        return state.params

    def with_params(self, state: Fed2State, params: dict[str, Tensor]) -> Fed2State:
        """Give the state with others of them."""
        return state._replace(params=params)

    def weights(self, state: Fed2State, client_id: int, num_examples: int) -> dict[str, Tensor]:
        """Give a client's weight in the shared part, and in each row that of its group."""
        groups = torch.tensor(self._group_weights(state, client_id, num_examples), dtype=torch.float64)
        weight = torch.tensor(float(self._weight(num_examples)), dtype=torch.float64)
        return {
            key: groups[state.group_of_row[key]] if key in state.group_of_row else weight
            for key in state.params
        }

    def rows(self, state: Fed2State, client_id: int) -> dict[str, Tensor] | None:
        """Give where the rows of the client's groups stand; None if they are all of them in order."""
        return rows_of(state.group_of_row, state.class_sets, state.own_sets[client_id])

    def _weight(self, num_examples: int) -> int:
        return num_examples if self.weighting == "samples" else 1

    def _group_weights(self, state: Fed2State, client_id: int, num_examples: int) -> list[float]:
        """Weight of a client for each group; 0 where it does not contribute."""
        own, counts = set(state.own_sets[client_id]), state.counts[client_id]
        weights = []
        for classes, count in zip(state.class_sets, counts, strict=True):
            contributes = classes in own and (self.pairing == "all" or count > 0)
            by = {"samples": num_examples, "uniform": 1, "class_count": count}
            weights.append(float(by[self.group_weighting]) if contributes else 0.0)
        return weights


def _own_sets(key: Hashable, sets: ClassSets) -> ClassSets:
    return sets if key is None else tuple(key)  # type: ignore[arg-type]
