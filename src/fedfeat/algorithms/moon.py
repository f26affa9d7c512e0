"""MOON: Li et al., "Model-Contrastive Federated Learning", CVPR 2021, Algorithm 1.

    server: as FedAvg
    client: w_k <- w;  w_prev, its last w_k, comes from its memory
            z = R(x; w_k),  z_g = R(x; w),  z_prev = R(x; w_prev),  R a network up to the end of its projection head
            minimise  F_k(w_k) + mu * mean of  -log( e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} + e^{cos(z, z_prev) / tau}) )
            keep w_k;  return w_k                                                                         (Eqs. 3, 4)

Gradients flow through z only: w and w_prev are fixed and in eval mode. The projection head is a part of the network,
which is averaged and reads as the others do: the last layer reads z. A client without a last model has w for it; then
the term is ln 2 and has no gradient.
"""  # noqa: E501

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import Count, NotNegative, Positive
from fedfeat.models.frozen import FrozenCopy
from fedfeat.models.network import Network
from fedfeat.models.projection import project
from fedfeat.models.redraw import drawn_again
from fedfeat.params import select
from fedfeat.seeding import derive_seed
from fedfeat.types import Tensors, Turn, Weights


class LastModels(NamedTuple):
    """A client's memory: what it had after its last turns, the newest first."""

    models: tuple[dict[str, Tensor], ...]


class MoonClient(ClientModule):
    """FedAvg's client, pulled towards what the received model sees and away from what its own last model saw.

    Args:
        model: The network; the projection head is put into it.
        mu: Weight of the term; 0 is FedAvg with this network.
        tau: Temperature.
        projection: Outputs of the projection head; null for none, so that z is what the network's own last layer reads.
        num_previous: Last models in the term.
        start: Which model stands for the last one before a client has any: the ``received`` one, or one of the client's
            own with ``independent`` initial weights, as in QinbinLi/MOON, whose first round has no term.
        arguments: As in `ClientModule`.
    """

    absent: Tensor
    keeps_tensors = True
    apart = None  # w and the last models are in the state dict, so turns can be stacked

    def __init__(
        self,
        *,
        model: Network,
        mu: NotNegative = 5.0,
        tau: Positive = 0.5,
        projection: Count | None = 256,
        num_previous: Count = 1,
        start: Literal["received", "independent"] = "received",
        **arguments: Any,
    ) -> None:
        if projection is not None:
            project(model, projection)
        super().__init__(model=model, **arguments)
        self.mu, self.tau, self.start = mu, tau, start
        self.received = FrozenCopy(self.model)
        self.previous = nn.ModuleList(FrozenCopy(self.model) for _ in range(num_previous))
        # Added to the similarities: 0 for a model that is there.
        self.register_buffer("absent", torch.full((num_previous,), -torch.inf))
        self.absent[0] = 0.0
        self._seed = int(torch.randint(2**62, ())) if start == "independent" else 0
        self._seen: Tensor | None = None

    def begin_turn(self, turn: Turn) -> None:
        """Fix w and the client's last models for the turn."""
        super().begin_turn(turn)
        if self.mu == 0.0:
            return
        own = self.model.state_dict()
        self.received.fill(own)
        models = self._last_models(turn) or (own,)
        for copy, tensors in zip(self.previous, models, strict=False):
            cast(FrozenCopy, copy).fill({**own, **tensors})
        self.absent.fill_(-torch.inf)[: len(models)] = 0.0

    def _last_models(self, turn: Turn) -> tuple[dict[str, Tensor], ...]:
        if turn.memory is not None:
            return turn.memory.models
        if self.start == "received":
            return ()
        return (drawn_again(self.model, derive_seed(self._seed, "client init", turn.client_id)),)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (B, num_classes) of inputs (B, ...); notes z."""
        network = cast(Network, self.model)
        seen = network.last_input(self.laid_out(inputs))
        self._seen = seen
        return network.last_layer(seen)

    def loss(self, batch: Batch) -> Tensor:
        """``F_k(w) + mu * l_con``."""
        loss = super().loss(batch)
        seen, self._seen = self._seen, None
        if self.mu == 0.0:
            return loss
        assert seen is not None
        inputs, labels = self.laid_out(batch[0]), batch[1]
        fixed = [_seen_by(copy, inputs) for copy in (self.received, *self.previous)]
        return loss + self.mu * contrast(seen, fixed[0], fixed[1:], self.tau, self.absent, labels >= 0)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, LastModels | None]:
        """Give the weights to the server and, with those of the client's last turns, to its memory."""
        own = tensors["model"]
        payload = Weights(select(own, self.shared_keys))
        if self.mu == 0.0:
            return payload, None
        models = (own, *self._last_models(turn)) if len(self.previous) > 1 else (own,)
        return payload, LastModels(models[: len(self.previous)])

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with a forward pass of every fixed model for each example."""
        metrics = super().turn_metrics()
        if self.mu > 0.0:
            passes = metrics["examples"] * (1 + len(self.previous))
            metrics["flops"] += passes * self.forward_flops_per_example
        return metrics


@torch.no_grad()
def _seen_by(copy: nn.Module, inputs: Tensor) -> Tensor:
    return cast(Network, cast(FrozenCopy, copy).network).last_input(inputs)


def contrast(
    own: Tensor, positive: Tensor, negatives: Sequence[Tensor], tau: float, absent: Tensor, counts: Tensor
) -> Tensor:
    """Give the mean of ``-log( e^{cos(z, z_g) / tau} / (e^{cos(z, z_g) / tau} + sum over p of e^{cos(z, z_p) / tau}) )``.

    Args:
        own: z (B, d).
        positive: z_g (B, d).
        negatives: The z_p, each (B, d).
        tau: Temperature.
        absent: For each of the negatives 0, or -inf where it is none (P,).
        counts: Which examples are in the mean (B,), at least one.
    """  # noqa: E501
    # One similarity with all of them: where z_g is z_p, their gradients cancel out to the last bit.
    fixed = torch.stack([positive, *negatives], dim=1)
    similarities = functional.cosine_similarity(own[:, None], fixed, dim=2) / tau
    gaps = similarities[:, 0] - torch.logsumexp(similarities[:, 1:] + absent, dim=1)
    return -(functional.logsigmoid(gaps) * counts).sum() / counts.sum()
