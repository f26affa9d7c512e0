"""Weights of a file as initial weights: read once, and refused where they are not the network's."""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from fedfeat.errors import ConfigError
from fedfeat.models.network import Network
from fedfeat.models.policy import selected
from fedfeat.params import copy_into

if TYPE_CHECKING:
    from fedfeat.types import Params

_log = logging.getLogger("fedfeat")
_SHOWN = 3


class StoredWeights(NamedTuple):
    """What a file of weights holds.

    Attributes:
        key: Where the file stands in the configuration.
        path: The file.
        params: Its tensors by name, those of one of our networks or of the library that it was taken from.
    """

    key: str
    path: str
    params: "Params"

    @classmethod
    def read(cls, key: str, path: str) -> "StoredWeights":
        """Read a file of safetensors.

        Raises:
            ConfigError: There is no such file, or it is of another kind.
        """
        try:
            params = load(Path(path).expanduser().read_bytes())
        except (OSError, SafetensorError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise ConfigError.rule(
                key, f"name a file of safetensors that can be read ({why})", path
            ) from error
        # Their order is another one at every reading.
        return cls(key, path, {name: params[name] for name in sorted(params)})


def take_weights(
    network: Network, stored: StoredWeights, fresh: Sequence[str] = (), fresh_key: str = "model.fresh"
) -> None:
    """Put the tensors of a file into a network: all of the network's and nothing else, by name and shape.

    Names may be those of the library that the network was taken from. A last layer that differs in the number of
    classes alone keeps its initial weights.

    Args:
        network: The network, changed in place.
        stored: The file.
        fresh: Parts that keep their initial weights whatever the file has for them, see `models.policy.selected`.
        fresh_key: Where they stand in the configuration.

    Raises:
        ConfigError: What differs, in one sentence.
    """
    own = network.state_dict()
    found = stored.params
    if not found.keys() & own.keys():
        found = {network.published.get(name, name): tensor for name, tensor in found.items()}
    asked = selected(network, fresh, fresh_key)
    left_out = asked | _other_classes(network, found, own, stored.path)
    # A file may have more of a layer than the network, such as statistics where it has another norm.
    layers = {key.rpartition(".")[0] for key in asked}
    theirs = {
        key: t for key, t in found.items() if key not in left_out and key.rpartition(".")[0] not in layers
    }
    wanted = {key: tensor for key, tensor in own.items() if key not in left_out}
    differing = _differing(wanted, theirs)
    if differing:
        raise ConfigError(
            f"{stored.key} must hold the tensors of the network by name and shape, but {stored.path} "
            f"{'; '.join(differing)} ({fresh_key} names parts that keep their initial weights)."
        )
    copy_into(network, {key: found[key] for key in wanted})


def _other_classes(network: Network, found: "Params", own: "Params", path: str) -> set[str]:
    """Give the tensors of the last layer where it has another number of rows, and the same otherwise."""
    keys = [f"{network.last_layer_name}.{name}" for name in network.last_layer.state_dict()]
    if not all(key in found and found[key].dim() == own[key].dim() for key in keys):
        return set()
    theirs, ours = found[keys[0]].shape, own[keys[0]].shape
    if theirs == ours or theirs[1:] != ours[1:]:
        return set()
    _log.info(
        "%s is of %d classes: the last layer keeps its initial weights, of %d.", path, theirs[0], ours[0]
    )
    return set(keys)


def _differing(wanted: "Params", found: "Params") -> list[str]:
    """Say what a file lacks or has beyond, and which shapes or kinds of numbers differ; nothing where all is well."""
    shapes = [
        f"{key} {_shape(found[key])} instead of {_shape(wanted[key])}"
        for key in wanted
        if key in found and found[key].shape != wanted[key].shape
    ]
    shapes += [
        f"{key} {_type(found[key])} instead of {_type(wanted[key])}"
        for key in wanted
        if key in found and found[key].is_floating_point() != wanted[key].is_floating_point()
    ]
    listed = {
        "lacks": [key for key in wanted if key not in found],
        "has besides": [key for key in found if key not in wanted],
        "has": shapes,
    }
    return [f"{verb} {_some(names)}" for verb, names in listed.items() if names]


def _some(names: Iterable[str]) -> str:
    all_names = list(names)
    more = len(all_names) - _SHOWN
    return ", ".join(all_names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _shape(tensor: Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "scalar"
