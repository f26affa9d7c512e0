"""HeteroFL: Diao et al., "HeteroFL: Computation and Communication Efficient Federated Learning ...", ICLR 2021.

    levels (clients/width_levels.py): client k has a level r_k of {1, 1/2, 1/4, ...}; its network has r_k of each
            layer's channels, and so a part W[k] of every tensor W: here the first ceil(r_k C) of C channels
    server: each round: S <- sample clients;  send W[k];  receive W_k
            each number of W <- mean of the W_k of those who hold it; that which nobody holds keeps its value
            a row of the last layer <- mean over those of them who have an example of its class
    client: E epochs of SGD on the cross-entropy over its own classes (the masking trick);  return W_k
            layers but the last give their outputs over r_k in training (the Scaler), and in the score right after it
            batch norm normalises by each batch alone; the server takes statistics for it afterwards (static)

Any client half that speaks `Weights` and keeps no tensors fits this server half.
"""

import sys
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedfeat.algorithms.element_mean import ElementMean, covered
from fedfeat.algorithms.shared_inputs import check_one_order
from fedfeat.algorithms.static_norm import batch_norms, begin_statistics, statistics_keys, take_statistics
from fedfeat.client import ClientModule
from fedfeat.config.conditions import Count
from fedfeat.errors import UserError
from fedfeat.models.flops import forward_flops
from fedfeat.models.network import Network
from fedfeat.models.policy import DROPPED, keys_with, sent_keys
from fedfeat.models.widths import Places, axes_of, part_of, places, scale_in_eval
from fedfeat.params import copy_into, snapshot
from fedfeat.server import AveragingServer, noting
from fedfeat.types import Federation, Params, Setting, Site, Turn, Update, Weights

_BATCH = 100
"""Examples in a batch of the pass for the statistics."""


class HeteroFLClient(ClientModule):
    """FedAvg's client with static batch norm: its running statistics are neither sent nor received.

    Args:
        arguments: As in `ClientModule`.
    """

    apart = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.policies |= dict.fromkeys(statistics_keys(self.model), DROPPED)
        self.shared_keys = sent_keys(self.policies)

    def receive(self, payload: Weights, memory: None) -> None:
        """Become a client that trains its part."""
        # Nobody else's statistics are left to one that trains on nothing; a payload may bring some.
        for norm in batch_norms(self.model):
            norm.reset_running_stats()
        super().receive(payload, memory)
        scale_in_eval(self.model, True)

    def recall(self, payload: Weights | None, memory: None) -> None:
        """Become the client's part of the whole network, which has no Scaler."""
        super().recall(payload, memory)
        scale_in_eval(self.model, False)

    def begin_turn(self, turn: Turn) -> None:
        """Begin the statistics anew, so that a score after the fit is by those of the fit."""
        begin_statistics(self.model)


class HeteroFLState(NamedTuple):
    """State of the server.

    Attributes:
        params: The tensors of the whole network that cross the wire.
        statistics: Those of static batch norm, which do not.
        present: Whether a client has training examples of a class, bool (K, C).
        round_idx: The round.
    """

    params: dict[str, Tensor]
    statistics: dict[str, Tensor]
    present: Tensor
    round_idx: int


class HeteroFLServer(AveragingServer):
    """Average every number over the clients that hold it.

    Args:
        weighting: By ``samples``, or ``uniform``, a count of clients.
        output_rows: Rows of the last layer are averaged over clients that hold the row's class (``holders``), or over
            ``all``.
        statistics: Training examples of all clients by which the server takes batch norm's statistics; None: all.
    """

    accepts_unequal = accepts_changing = True
    needs_whole_model = rebuilds_networks = True

    def __init__(
        self,
        weighting: Literal["samples", "uniform"] = "uniform",
        output_rows: Literal["holders", "all"] = "holders",
        statistics: Count | None = 1000,
    ) -> None:
        self.weighting, self.output_rows, self.statistics = weighting, output_rows, statistics

    def start(self, round_idx: int) -> int:
        """Give the first channel that clients have, of every layer modulo its width."""
        return 0

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take networks of several widths."""
        if not isinstance(model, Network) or model.rate is None:
            raise UserError(
                f"algorithm={setting.algorithm} must have networks of several widths (structure=widths), but it has "
                f"none of them."
            )
        if statistics_keys(model):
            check_one_order("batch norm's statistics", setting)

    def setup(self, site: Site) -> None:
        """Note the site, and where the parts of the network stand."""
        super().setup(site)
        self._network = site.networks.build()
        self._places = lru_cache(64)(partial(places, axes_of(self._network)))

    def init(self, model: nn.Module, federation: Federation) -> HeteroFLState:
        """Start from the common initial model."""
        dropped = set(keys_with(federation.policies, DROPPED))
        static = [key for key in statistics_keys(model) if key in dropped]
        params = snapshot(model, sent_keys(federation.policies))
        present = torch.from_numpy(federation.class_counts > 0)
        return self._with_statistics(HeteroFLState(params, snapshot(model, static), present, 0))

    def broadcast(self, state: HeteroFLState, client_id: int) -> Weights:
        """Send the client's part."""
        return Weights(part_of(state.params, self._held(state, client_id)))

    def own_payload(self, state: HeteroFLState, client_id: int) -> Weights:
        """Give the client's part, with static batch norm's statistics of this part alone."""
        sent = self.broadcast(state, client_id)
        if not state.statistics:
            return sent
        network = self.site.networks.build(self.site.networks.key(client_id, state.round_idx))
        scale_in_eval(network, False)
        found, _ = self._statistics(state, network, sent.params)
        return Weights(sent.params | found)

    def aggregate(self, state: HeteroFLState, updates: Iterable[Update]) -> HeteroFLState:
        """Average; a round without an update changes nothing but its number."""
        cohort: list[tuple[int, int]] = []
        new = self.mean(state, noting(updates, cohort))
        return self._with_statistics(new) if cohort else new

    def mean(self, state: HeteroFLState, updates: Iterable[Update]) -> HeteroFLState:
        """Average, and leave the statistics as they were."""
        mean = ElementMean(state.params)
        for update in updates:
            mean.add(*self._contributed(state, update), self._weight(update.num_examples))
        return state._replace(round_idx=state.round_idx + 1, params=mean.result())

    def global_payload(self, state: HeteroFLState) -> Weights:
        """Give the whole model, with batch norm's statistics."""
        return Weights(state.params | state.statistics)

    def newcomer_payload(self, state: HeteroFLState) -> Weights:
        """Give the same; clients that join later have all channels."""
        return self.global_payload(state)

    def params(self, state: HeteroFLState) -> dict[str, Tensor]:
        """Give the tensors that cross the wire."""
        return state.params

    def with_params(self, state: HeteroFLState, params: dict[str, Tensor]) -> HeteroFLState:
        """Give the state with others of them, and their statistics."""
        return self._with_statistics(state._replace(params=params))

    def covered(self, state: HeteroFLState, cohort: Iterable[tuple[int, int]]) -> dict[str, Tensor]:
        """Say of every number whether somebody of a cohort has a weight in it."""
        weighed = (client_id for client_id, num_examples in cohort if self._weight(num_examples))
        return covered(state.params, (self._counted(state, client_id) for client_id in weighed))

    def _weight(self, num_examples: int) -> int:
        return num_examples if self.weighting == "samples" else 1

    def _held(self, state: HeteroFLState, client_id: int) -> Places:
        level = self.site.networks.key(client_id, state.round_idx)
        return {} if level is None else self._places(float(str(level)), self.start(state.round_idx))

    def _counted(self, state: HeteroFLState, client_id: int) -> Places:
        """Give where the numbers stand that a client adds to the mean: no rows of classes that it does not hold."""
        held, present = self._held(state, client_id), state.present[client_id]
        if self.output_rows == "all" or bool(present.all()):
            return held
        # The last layer's rows are classes, of which no level has fewer.
        classes = present.nonzero().flatten()
        return held | {key: (classes, *held.get(key, ())[1:]) for key in self._last(state)}

    def _contributed(self, state: HeteroFLState, update: Update) -> tuple[dict[str, Tensor], Places]:
        """Give what a client adds to the mean, and where."""
        own, counted = update.payload.params, self._counted(state, update.client_id)
        rows = {key: counted[key][0] for key in self._last(state) if key in counted}
        cut = {key: own[key].index_select(0, index) for key, index in rows.items() if index is not None}
        return own | cut, counted

    def _last(self, state: HeteroFLState) -> list[str]:
        return [key for key in state.params if key.startswith(f"{self._network.last_layer_name}.")]

    def _with_statistics(self, state: HeteroFLState) -> HeteroFLState:
        if not state.statistics:
            return state
        found, num_inputs = self._statistics(state, self._network, state.params)
        self.site.spend(float(num_inputs * forward_flops(self._network)))
        return state._replace(statistics=found)

    def _statistics(
        self, state: HeteroFLState, network: Network, params: Params
    ) -> tuple[dict[str, Tensor], int]:
        """Take the statistics of a network with these tensors; also give of how many inputs."""
        site = self.site
        copy_into(network, params)
        inputs, _ = site.examples("train_pool", self.statistics or sys.maxsize, state.round_idx)
        parts = inputs.tensor_split(max(len(inputs) // _BATCH, 1))
        with site.autocast():
            take_statistics(network.to(site.device), (site.plain(part) for part in parts))
        return snapshot(network, state.statistics), len(inputs)
