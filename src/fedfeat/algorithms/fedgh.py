"""FedGH: Yi et al., "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.

    server: each round: S <- sample clients;  send the header theta;  receive the P_k
            for some epochs over all pairs (P_k[c], c):  theta <- theta - lr * grad cross-entropy(theta; P_k[c], c)
    client: phi_k is its own;  theta_k <- theta;  minimise  F_k(theta_k o phi_k)  over both
            P_k[c] <- mean of phi_k(x) over its examples of class c;   keep phi_k, drop theta_k

The header is the last layer, phi_k everything below it, of any architecture whose last layer reads as many numbers.
"""

from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from fedfeat.algorithms.prototype_clients import PrototypeClient
from fedfeat.algorithms.prototype_servers import descend, network_of_client, stacked
from fedfeat.config.conditions import Count, Natural, Positive
from fedfeat.errors import ConfigError
from fedfeat.features.prototypes import Prototypes
from fedfeat.params import copy_into, snapshot
from fedfeat.server import Server
from fedfeat.types import Federation, Tensors, Turn, Update


class HeaderOrPrototypes(NamedTuple):
    """Payload: down theta, up P_k.

    Attributes:
        header: Down, the last layer's tensors by their names in it, (C, d) and (C,).
        prototypes: Up, those of the client's classes.
    """

    header: dict[str, Tensor]
    prototypes: Prototypes | None = None


class FedGHClient(PrototypeClient):
    """Clients with extractors of their own under a common header.

    Args:
        arguments: As in `ClientModule`; ``personal`` is the body.
    """

    payload_type: ClassVar[type] = HeaderOrPrototypes
    apart = None

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        last = self.network.last_layer_name
        if set(self.shared_keys) != {f"{last}.{name}" for name in self.network.last_layer.state_dict()}:
            rule = "be [body] for FedGH, whose header is the last layer"
            raise ConfigError.rule("algorithm.client.personal", rule, list(arguments.get("personal", ())))

    def receive(self, payload: HeaderOrPrototypes, memory: None) -> None:
        """Take the header; what is below it is the client's own."""
        copy_into(self.network.last_layer, payload.header)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[HeaderOrPrototypes, None]:
        """Give P_k of the classes that the client has, and no header."""
        return HeaderOrPrototypes({}, self.own_prototypes(turn)[0]), None


class FedGHState(NamedTuple):
    """State of the server.

    Attributes:
        seed: The experiment's seed.
        round_idx: The round.
        header: theta, the tensors of a linear layer.
    """

    seed: int
    round_idx: int
    header: dict[str, Tensor]


class FedGHServer(Server):
    """Train a header on the clients' prototypes.

    Args:
        epochs: Passes over the prototypes of a round; 0 leaves the header at its initial values, which is what the
            released code of LipingYi/FedGH does.
        lr: Learning rate of its plain SGD.
        batch_size: Prototypes in a step.
    """

    payload_type: ClassVar[type] = HeaderOrPrototypes
    accepts_unequal = True
    needs_common_width = True

    def __init__(self, epochs: Natural = 1, lr: Positive = 0.01, batch_size: Count = 10) -> None:
        self.epochs, self.lr, self.batch_size = epochs, lr, batch_size

    def init(self, model: nn.Module, federation: Federation) -> FedGHState:
        """Start from the common initial model's last layer; in a pool from that of the first client's network."""
        return FedGHState(federation.seed, 0, snapshot(network_of_client(model, federation).last_layer))

    def broadcast(self, state: FedGHState, client_id: int) -> HeaderOrPrototypes:
        """Send theta."""
        return HeaderOrPrototypes(state.header)

    def aggregate(self, state: FedGHState, updates: Iterable[Update]) -> FedGHState:
        """Train theta; a round without a prototype changes nothing but its number."""
        pairs = stacked(update.payload.prototypes for update in updates)
        state = state._replace(round_idx=state.round_idx + 1)
        if pairs is None:
            return state
        num_classes, width = state.header["weight"].shape
        layer = nn.Linear(width, num_classes, bias="bias" in state.header)
        layer.to(self.site.device, state.header["weight"].dtype)
        copy_into(layer, state.header)

        def loss(means: Tensor, classes: Tensor) -> Tensor:
            return functional.cross_entropy(layer(means), classes)

        pairs = Prototypes(*(tensor.to(self.site.device) for tensor in pairs))
        address = (state.seed, state.round_idx)
        descend(
            layer, loss, pairs, epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, address=address
        )
        # Forward, and the weights' gradient alone: nothing is below the header.
        self.site.spend(2.0 * 2 * self.epochs * len(pairs.classes) * num_classes * width)
        return state._replace(header=snapshot(layer))

    def global_payload(self, state: FedGHState) -> None:
        """There is no common model."""

    def newcomer_payload(self, state: FedGHState) -> HeaderOrPrototypes:
        """Give theta; a client starts with its own initial extractor."""
        return self.broadcast(state, 0)
