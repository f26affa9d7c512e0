"""OT fusion: Singh and Jaggi, "Model Fusion via Optimal Transport", NeurIPS 2020, with distances of weights as cost.

    server: send w
    client: train;  return w_k
    server: bring the neurons of every w_k to the places of an anchor's, layer by layer (`features.one_shot.ot_align`)
            w <- sum_k n_k / (sum_j n_j) * aligned w_k

The anchor is the global model before the round, or the first participant, as in the paper's fusion of two networks in
one shot. Clients are FedAvg's.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal, NamedTuple

from torch import Tensor, nn

from fedfeat.features.chain import as_model, chain_layers, layer_of
from fedfeat.features.one_shot import ot_align
from fedfeat.params import WeightedMean, snapshot
from fedfeat.server import Server
from fedfeat.types import Federation, Setting, Update, Weights


class OTFusionState(NamedTuple):
    """State of the server.

    Attributes:
        layers: Names of the weighted layers.
        model: The global model.
    """

    layers: tuple[str, ...]
    model: dict[str, Tensor]


class OTFusionServer(Server):
    """Align the clients' neurons to those of an anchor, then average.

    Args:
        anchor: ``global``, the model before the round, or ``client``, the first participant.
        weighting: ``samples``, or ``uniform`` as in the paper's fusion of two.
    """

    payload_type: ClassVar[type] = Weights
    needs_whole_model = matches_neurons = True

    def __init__(
        self,
        anchor: Literal["global", "client"] = "global",
        weighting: Literal["samples", "uniform"] = "samples",
    ) -> None:
        self.anchor, self.weighting = anchor, weighting

    def check(self, model: nn.Module, setting: Setting) -> None:
        """Take plain chains of layers."""
        chain_layers(model)

    def init(self, model: nn.Module, federation: Federation) -> OTFusionState:
        """Start from the common initial model."""
        return OTFusionState(chain_layers(model), snapshot(model))

    def broadcast(self, state: OTFusionState, client_id: int) -> Weights:
        """Send the same weights to everyone."""
        return Weights(state.model)

    def aggregate(self, state: OTFusionState, updates: Iterable[Update]) -> OTFusionState:
        """Align and average; a round without an update changes nothing."""
        mean = WeightedMean()
        anchor = state.model if self.anchor == "global" else None
        for update in updates:
            anchor = update.payload.params if anchor is None else anchor
            own, other = (
                [layer_of(params, name) for name in state.layers]
                for params in (update.payload.params, anchor)
            )
            aligned = as_model(state.layers, ot_align(own, other))
            mean.add(aligned, update.num_examples if self.weighting == "samples" else 1)
        return state if mean.is_empty else state._replace(model=mean.result())

    def global_payload(self, state: OTFusionState) -> Weights:
        """Give the averaged model."""
        return Weights(state.model)
