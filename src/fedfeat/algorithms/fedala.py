"""FedALA: Zhang et al., "FedALA: Adaptive Local Aggregation for Personalized Federated Learning", AAAI 2023, Alg. 1.

    server: as FedAvg, on w
    client: theta_k <- w^t;  in its top p layers, with v_k and W_k its own (W_k = 1 before its second turn):
                theta_k <- v_k + (w^t - v_k) * W_k, elementwise
                over batches b of a sample of its examples:
                    W_k <- W_k - eta * grad F_k(theta_k; b) * (w^t - v_k), kept in [0, 1];  theta_k anew
                in its second turn until the losses of passes settle, later one pass
            for E epochs over batches b:  theta_k <- theta_k - lr * grad F_k(theta_k; b)
            keep W_k, v_k <- theta_k in the top layers;  return theta_k

theta_k is the client's model: right after its fit as it is, between its turns as the next fit would find it.
"""

from collections.abc import Sequence
from functools import partial
from statistics import pstdev
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor

from fedfeat.algorithms.own_models import Precise, gradient_at, refuse_personal
from fedfeat.client import Batch, ClientModule
from fedfeat.config.conditions import Count, NotNegative, interval
from fedfeat.errors import ConfigError
from fedfeat.models.network import Network
from fedfeat.params import copy_into, full, select, trained_names
from fedfeat.types import Tensors, Turn, Weights

# Losses of this many passes are looked at, and there are at most so many passes.
_LOOKED_AT, _MOST_PASSES = 10, 100


class TopLayers(NamedTuple):
    """Memory: v_k and W_k of the top layers under their names, and how many turns the client has had.

    Attributes:
        params: v_k.
        weights: W_k, of the same shapes.
        turns: The number of turns; W_k is learned from the second on.
    """

    params: dict[str, Tensor]
    weights: dict[str, Tensor]
    turns: int


class _Mix(Precise):
    """W_k and the examples passed to learn it: parts of the half, so that stacked clients have each their own."""

    num_passed: Tensor

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.keys = {key.replace(".", "/"): key for key in tensors}
        for name, key in self.keys.items():
            self.register_buffer(name, torch.ones_like(full(tensors[key])))
        self.register_buffer("num_passed", torch.zeros((), dtype=torch.int64))

    def weights(self, tensors: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Give W_k by the names in the network, of this module's tensors or of others under their names here."""
        found = dict(self.named_buffers()) if tensors is None else tensors
        return {key: found[name] for name, key in self.keys.items()}


class FedALAClient(ClientModule):
    """FedAvg's client that starts from a mixture, learned weight by weight, of its last model and the received one.

    Args:
        layers: p, counted in blocks that have weights from the logits down. The public code's 2 are tensors: 1 layer.
        eta: Learning rate of W_k; 0 is FedAvg.
        share: Part of the client's examples that W_k is learned on.
        threshold: Losses of ten passes whose standard deviation is below it have settled.
        ala_batch: Examples of a batch of these passes; None is all of them.
        arguments: As in `ClientModule`.
    """

    keeps_model = True
    apart = None  # the mixture is made before the fit, whose steps are FedAvg's

    def __init__(
        self,
        *,
        layers: Count = 1,
        eta: NotNegative = 1.0,
        share: Annotated[float, interval("(0, 1]")] = 0.8,
        threshold: NotNegative = 0.1,
        ala_batch: Count | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        refuse_personal("FedALA", arguments.get("personal", ()))
        self.eta, self.share, self.threshold, self.ala_batch = eta, share, threshold, ala_batch
        self._top = top_parameters(cast(Network, self.model), layers)
        self.mix = _Mix(select(dict(self.model.named_parameters()), self._top))
        self._memory: TopLayers | None = None
        self._num_passed = 0

    def receive(self, payload: Weights, memory: TopLayers | None) -> None:
        """Take w^t; what the client keeps waits for its data."""
        super().receive(payload, memory)
        self._memory = memory
        self.mix.num_passed.zero_()
        weights = self.mix.weights()
        for key, own in weights.items():
            own.copy_(memory.weights[key] if memory else torch.ones_like(own))

    def begin_turn(self, turn: Turn) -> None:
        """Start from the mixture."""
        self.to(turn.device).eval()
        self._start(turn)
        self.train()

    def adapt(self, turn: Turn) -> None:
        """Mix as the next turn would, after `recall`; after a fit the client's model is what was fitted."""
        self._start(turn)

    def _start(self, turn: Turn) -> None:
        memory, self._memory = self._memory, None
        if memory is None:
            return
        named, weights = dict(self.model.named_parameters()), self.mix.weights()
        received = {key: named[key].detach().clone() for key in self._top}
        kept = {key: tensor.to(turn.device) for key, tensor in memory.params.items()}
        batches = self._sample(turn) if self.eta else []
        losses: list[float] = []
        while batches and not self._settled(losses, first=memory.turns == 1):
            losses.append(self._learn(weights, kept, received, batches))
            self.mix.num_passed += sum(len(labels) for _, labels in batches)
        copy_into(self.model, mixed(kept, received, weights))

    def _settled(self, losses: Sequence[float], first: bool) -> bool:
        if not first or len(losses) == _MOST_PASSES:
            return bool(losses)
        return len(losses) > _LOOKED_AT and pstdev(losses[-_LOOKED_AT:]) < self.threshold

    def _sample(self, turn: Turn) -> list[Batch]:
        """Give batches of a part of the client's examples, drawn anew for every turn."""
        count = int(turn.class_counts.sum())
        generator = torch.Generator().manual_seed(turn.seed)
        order = torch.randperm(count, generator=generator)[: max(round(self.share * count), 1)]
        chosen = torch.zeros(count, dtype=torch.bool).index_fill_(0, order, True).to(turn.device)
        size, found, start = self.ala_batch or max(count, 1), list[Batch](), 0
        for inputs, labels in turn.batches(size):
            own = chosen[start : start + len(labels)]
            start += len(labels)
            if own.any():
                found.append((self.laid_out(inputs[own]), labels[own]))
        # Drawn first and cut into batches then, so that all but the last are whole.
        drawn = (torch.cat(part).split(size) for part in zip(*found, strict=True))
        return list(zip(*drawn, strict=True))

    @torch.no_grad()
    def _learn(
        self,
        weights: dict[str, Tensor],
        kept: dict[str, Tensor],
        received: dict[str, Tensor],
        batches: Sequence[Batch],
    ) -> float:
        """Make one pass, which changes the weights in place; give the loss of its last batch."""
        value = torch.zeros(())
        for inputs, labels in batches:
            theta = mixed(kept, received, weights)
            loss = partial(self.cross_entropy, labels=labels)
            slopes, value = gradient_at(self.model, theta, inputs, loss)
            for key, own in weights.items():
                own.sub_(self.eta * slopes[key] * (received[key] - kept[key])).clamp_(0, 1)
        return float(value)

    def upload(self, turn: Turn, tensors: Tensors) -> tuple[Weights, TopLayers]:
        """Give theta_k, keep its top layers and W_k."""
        payload, _ = super().upload(turn, tensors)
        self._num_passed = int(tensors["mix"]["num_passed"])
        top = {key: tensors["model"][key].clone() for key in self._top}
        turns = turn.memory.turns + 1 if turn.memory else 1
        return payload, TopLayers(top, self.mix.weights(tensors["mix"]), turns)

    def turn_metrics(self) -> dict[str, float]:
        """As `ClientModule`, with the passes that learned W_k, each counted as one both ways."""
        metrics = super().turn_metrics()
        metrics["flops"] += self._num_passed * self.flops_per_example
        return metrics


def mixed(
    kept: dict[str, Tensor], received: dict[str, Tensor], weights: dict[str, Tensor]
) -> dict[str, Tensor]:
    """``v + (w - v) * W``, in its type, which is w where W is 1 and v where it is 0, bit for bit."""
    return {
        key: torch.lerp(kept[key].to(weight), received[key].to(weight), weight).to(received[key])
        for key, weight in weights.items()
    }


def top_parameters(network: Network, layers: int) -> list[str]:
    """Name the parameters of the last blocks that have any, as many as asked for.

    Raises:
        ConfigError: The network has not so many.
    """
    parts = [f"encoder.{name}." for name, _ in network.encoder.named_children()]
    parts += [f"head.{name}." for name, _ in network.head.named_children()]
    names = trained_names(network)
    weighted = [part for part in parts if any(name.startswith(part) for name in names)]
    if layers > len(weighted):
        rule = f"be at most {len(weighted)}, the blocks of the network that have weights"
        raise ConfigError.rule("algorithm.client.layers", rule, layers)
    return [name for name in names if name.startswith(tuple(weighted[-layers:]))]
