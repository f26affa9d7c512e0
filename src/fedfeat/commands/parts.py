"""The parts of a run that several commands need: its data, and its client half."""

import inspect
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig

from fedfeat.config.made import held_to, made
from fedfeat.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from fedfeat.client import ClientModule
    from fedfeat.data.federated import FederatedData

_log = logging.getLogger("fedfeat")


def build_data(cfg: DictConfig, config: dict[str, Any], device: "torch.device | str") -> "FederatedData":
    """Load the data set and split it among the clients.

    Args:
        cfg: The composed configuration.
        config: The same, resolved, as plain values.
        device: Where inputs and labels are kept.

    Raises:
        UserError: The data are missing, or cannot be split so.
    """
    from fedfeat.clients.local_trainer import dtype_of
    from fedfeat.data.examples import Dataset
    from fedfeat.data.federated import FederatedData
    from fedfeat.data.partition.checks import gaps
    from fedfeat.data.partition.schemes import Scheme
    from fedfeat.data.partition.split_store import load_or_make
    from fedfeat.data.public import with_public
    from fedfeat.data.transforms import Transform

    # What they refuse is refused before minutes of decoding.
    transform = made(cfg.data.transform, Transform, "data.transform")
    scheme = made(cfg.partition, Scheme, "partition")  # type: ignore[type-abstract]
    dataset = made(cfg.data.loader, Dataset, "data.loader")
    seed, federation, scenario = config["seed"], config["federation"], config["scenario"]
    public = hydra.utils.instantiate(config.get("public", {}).get("loader"), _convert_="all")
    public = public and held_to(Dataset, public, "public.loader")
    dataset, public = with_public(dataset, public, config["algorithm"].get("public_share"), seed)
    split = load_or_make(scheme, dataset, federation["num_clients"], seed, Path(config["paths"]["cache"]))
    dtype = dtype_of(config["trainer"].get("precision"))
    data = FederatedData(dataset, split, transform, seed=seed, device=device, public=public, dtype=dtype)
    for sentence in gaps(data.split, len(data.dataset.train)):
        _log.info("%s", sentence)
    data = data.without(federation["held_out"])
    data = data.reduced(scenario["reduced_fraction"], scenario["reduced_to"], seed)
    return data.pooled() if config["algorithm"]["pooled"] else data


def build_client(cfg: DictConfig) -> "partial[ClientModule]":
    """Give what makes the client half around a ``model``."""
    optimizer = hydra.utils.instantiate(cfg.optimizer, _convert_="all")
    client = partial(hydra.utils.instantiate(cfg.algorithm.client, _convert_="all"), optimizer=optimizer)
    try:
        inspect.signature(client).bind(model=None, channels_last=None)
    except TypeError as error:
        taken = "take model, optimizer and channels_last from the run and all else from its option"
        raise ConfigError(f"algorithm.client must {taken}, but there is {error}.") from error
    return client
