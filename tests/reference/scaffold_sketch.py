"""SCAFFOLD: Karimireddy et al., ICML 2020, Algorithm 1 with option II, as short as the contract of a method lets it be.

server: x, c <- initial model, 0;  each round:  send x, c to a sample S of N clients;  receive y_k, dc_k
        x <- mean of y_k;  c <- c + sum of dc_k / N
client: K steps:  y <- y - lr * (g(y) - c_k + c);  c_k+ <- c_k - c + (x - y) / (K lr);  return y, c_k+ - c_k
"""

from collections.abc import Iterable
from typing import NamedTuple

from torch import Tensor, nn

from fedfeat.client import Batch, ClientModule
from fedfeat.models.frozen import FrozenCopy
from fedfeat.params import WeightedMean, snapshot
from fedfeat.server import Server
from fedfeat.types import Federation, Tensors, Turn, Update


class Controlled(NamedTuple):
    """Payload: down x and c, up y_k and c_k+ - c_k."""

    params: dict[str, Tensor]
    control: dict[str, Tensor]


class Control(NamedTuple):
    """Memory: c_k."""

    control: dict[str, Tensor]


class ScaffoldClient(ClientModule):
    """FedAvg's client whose gradients are corrected by c - c_k."""

    payload_type = Controlled
    apart = None  # the correction is a part of the half, so turns can be stacked

    def __init__(self, **arguments) -> None:
        super().__init__(**arguments)
        self.correction = FrozenCopy(self.model)

    def begin_turn(self, turn: Turn) -> None:
        """Fix c - c_k for the turn."""
        c, own = turn.payload.control, turn.memory.control if turn.memory else {}
        self.correction.fill({key: c[key] - own.get(key, 0.0) for key in c})

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(y) + <c - c_k, y>``, whose gradient is ``g(y) - c_k + c``."""
        pairs = zip(self.model.parameters(), self.correction.network.parameters(), strict=True)
        return super().loss(batch) + sum((own * correction).sum() for own, correction in pairs)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Controlled, Control]:
        """Give y_k and the change of c_k."""
        (x, c), y, length = turn.payload, tensors["model"], turn.num_steps * turn.lr
        change = {key: (x[key] - y[key]) / length - c[key] for key in c}
        own = turn.memory.control if turn.memory else {}
        return Controlled(y, change), Control({key: change[key] + own.get(key, 0.0) for key in c})


class ScaffoldState(NamedTuple):
    """State of the server."""

    params: dict[str, Tensor]
    control: dict[str, Tensor]
    num_clients: int


class ScaffoldServer(Server):
    """Average weights, and move c by what the cohort has changed."""

    payload_type = Controlled

    def init(self, model: nn.Module, federation: Federation) -> ScaffoldState:
        start = snapshot(model)
        return ScaffoldState(start, {k: 0 * t for k, t in start.items()}, federation.num_clients)

    def broadcast(self, state: ScaffoldState, client_id: int) -> Controlled:
        return Controlled(state.params, state.control)

    def aggregate(self, state: ScaffoldState, updates: Iterable[Update]) -> ScaffoldState:
        mean, control = WeightedMean(), state.control
        for update in updates:
            mean.add(update.payload.params, 1)
            change = update.payload.control
            control = {key: c + change[key] / state.num_clients for key, c in control.items()}
        return state._replace(params=mean.result(), control=control)

    def global_payload(self, state: ScaffoldState) -> Controlled:
        return Controlled(state.params, state.control)
