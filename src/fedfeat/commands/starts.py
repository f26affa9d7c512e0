"""Where networks start from beside their seed, `model.weights`, and what of them stays there, `model.freeze`."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from fedfeat import tree
from fedfeat.clients.networks import OneNetwork
from fedfeat.data.cached import with_features
from fedfeat.errors import ConfigError
from fedfeat.models.flops import forward_flops
from fedfeat.models.freezing import freeze
from fedfeat.models.frozen_start import cut_behind_frozen
from fedfeat.models.network import Network
from fedfeat.models.weights import StoredWeights, take_weights

if TYPE_CHECKING:
    from fedfeat.clients.local_trainer import LocalTrainer
    from fedfeat.data.federated import FederatedData
    from fedfeat.types import Networks

_log = logging.getLogger("fedfeat")


class Start(NamedTuple):
    """Keys of the group ``model`` that no builder reads.

    Attributes:
        weights: A file of initial weights, see `models.weights.take_weights`.
        fresh: Parts that keep their initial weights all the same.
        freeze: Parts that do not train, see `models.freezing.freeze`.
        cached: Whether the frozen layers that the network begins with are passed once, before the rounds.
    """

    weights: str | None = None
    fresh: Sequence[str] = ()
    freeze: Sequence[str] = ()
    cached: bool = False

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> "Start":
        """Take them from the section; those of a run from before there was one of them are as if not set."""
        return cls(**{key: model[key] for key in cls._fields if key in model})


def started(
    build: Callable[..., Network], key: str, weights: str | None, fresh: Sequence[str]
) -> Callable[..., Network]:
    """Give a builder whose networks have the weights of a file; it is read once.

    Args:
        build: The builder.
        key: Of its settings in the configuration, with ``{}`` for their name.
        weights: The file, or None.
        fresh: See `Start`.

    Raises:
        ConfigError: The file cannot be read.
    """
    if weights is None:
        if fresh:
            raise ConfigError.rule(
                key.format("fresh"), f"be empty without {key.format('weights')}", list(fresh)
            )
        return build
    stored = StoredWeights.read(key.format("weights"), weights)

    def make(**shape: Any) -> Network:
        network = build(**shape)
        take_weights(network, stored, fresh, key.format("fresh"))
        return network

    return make


def frozen(network: Network, selectors: Sequence[str]) -> Network:
    """Freeze parts of the network of the group ``model``, in place."""
    freeze(network, selectors, "model.freeze")
    return network


def on_features(
    config: Mapping[str, Any], data: "FederatedData", networks: "Networks", trainer: "LocalTrainer"
) -> "tuple[FederatedData, Networks]":
    """Give data and networks as the rounds see them: under ``model.cached`` features and what is behind them.

    Args:
        config: The resolved configuration.
        data: The federation's data.
        networks: Which network each client runs.
        trainer: The Trainer of local fits, in whose precision the features are computed.

    Raises:
        ConfigError: Features are not the same in every pass, or the network does not begin with frozen layers.
    """
    if not Start.of(config["model"]).cached:
        return data, networks
    reasons = {
        "where training images are augmented, new in every epoch (data/transform=none keeps them)": data.augmented,
        "where every client sees the pixels in an order of its own (partition=permuted)": data.permuted,
    }
    for reason in (text for text, holds in reasons.items() if holds):
        raise ConfigError.rule("model.cached", f"be false {reason}", True)
    whole = networks.build()
    flops = forward_flops(whole)
    start, rest = cut_behind_frozen(whole)
    _log.info(
        "Clients train on cached features: %.3g FLOPs of an example are spent once, and are not in compute/flops.",
        flops - forward_flops(rest),
    )
    start.to(data.device)
    key = {
        "layers": repr(start),
        # Buffers that are stored nowhere too, such as word vectors.
        "weights": tree.sha256({**start.state_dict(), **dict(start.named_buffers())}),
        "precision": str(trainer.precision),
        "device": data.device.type,
    }

    def encode(inputs: torch.Tensor) -> torch.Tensor:
        with trainer.autocast(data.device):
            return start(inputs)

    changed = with_features(data, encode, key, config["paths"]["cache"])
    return changed, OneNetwork(lambda: cut_behind_frozen(networks.build()).rest)
