"""What methods share whose clients keep a whole model of their own beside the server's."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from fedfeat.errors import ConfigError


class OwnModel(NamedTuple):
    """Memory: a client's own model, under the names of the network's tensors."""

    params: dict[str, Tensor]


def refuse_personal(method: str, personal: Sequence[str]) -> None:
    """Refuse parts that stay with the client where it keeps a whole model anyway.

    Raises:
        ConfigError: There are some.
    """
    if personal:
        rule = f"be empty for {method}, whose clients keep a whole model each"
        raise ConfigError.rule("algorithm.client.personal", rule, list(personal))


def clip_each(networks: Iterable[nn.Module], value: float | int | None, algorithm: str | None) -> None:
    """Clip the gradients of every network by its own norm, or by value, as a Trainer clips a single one's."""
    clip = clip_grad_value_ if algorithm == "value" else clip_grad_norm_
    for network in networks if value else ():
        clip(network.parameters(), value)  # type: ignore[arg-type]
