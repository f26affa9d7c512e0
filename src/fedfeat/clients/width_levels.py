"""Federations whose clients run the server's network with fewer channels."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated

from fedfeat.config.conditions import Condition, interval, list_of
from fedfeat.models.network import Network
from fedfeat.models.widths import axes_of, narrowed
from fedfeat.seeding import numpy_generator

_RATES = list_of(interval("(0, 1]"))
_LEVELS = Condition(
    lambda value: bool(value) and _RATES.holds(value),
    f"be {_RATES.text[3:]}, and not be empty",
    {**_RATES.schema, "minItems": 1},
)


@dataclass(frozen=True)
class WidthLevels:
    """How wide each client's network is.

    Attributes:
        levels: Shares of each layer's channels. Client k has that of number k modulo their number; one that stands
            here twice has twice as many clients.
        dynamic: Draw every client's level anew in every round, each of ``levels`` alike.
        scaler: Divide what a layer gives by the client's level in training, see `models.widths.narrowed`.
    """

    levels: Annotated[Sequence[float], _LEVELS] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    dynamic: bool = False
    scaler: bool = True

    def level(self, client_id: int, round_idx: int, seed: int) -> float:
        """Give a client's level in a round, with the experiment's seed."""
        number = client_id % len(self.levels)
        if self.dynamic:
            number = int(numpy_generator(seed, "level", round_idx, client_id).integers(len(self.levels)))
        return float(self.levels[number])


class WidthNetworks:
    """The server's network and its narrower forms; a key is a level, None that of the whole network.

    Args:
        spec: The levels.
        build: Makes the server's network with the common initial weights, the same at every call.
        seed: The experiment's seed.

    Attributes:
        dynamic: Whether a client's key may be another in every round.

    Raises:
        ConfigError: The network does not have such forms.
    """

    def __init__(self, spec: WidthLevels, build: Callable[[], Network], seed: int) -> None:
        self._spec, self._build, self._seed = spec, build, seed
        self.dynamic = spec.dynamic
        whole = build()
        self._axes = axes_of(whole)
        forms = {rate: narrowed(whole, self._axes, rate) for rate in dict.fromkeys(spec.levels)}
        self._sizes = {rate: sum(p.numel() for p in form.parameters()) for rate, form in forms.items()}

    def key(self, client_id: int, round_idx: int = 0) -> float | None:
        """Give a client's level in a round; None where it has all channels."""
        level = self._spec.level(client_id, round_idx, self._seed)
        return None if level == 1 else level

    def kinds(self, num_clients: int) -> list[int]:
        """Name no client: narrower networks have the layers of the server's."""
        return []

    def build(self, key: Hashable = None) -> Network:
        """Build the network of a level, with its first channels' part of the common initial weights."""
        whole = self._build()
        whole.rate = 1.0
        return whole if key is None else narrowed(whole, self._axes, float(str(key)), self._spec.scaler)

    def describe(self) -> str:
        """Tell the parameters of each level, in one line."""
        return "structure: " + ", ".join(
            f"level {rate:g}: {size:,} parameters" for rate, size in self._sizes.items()
        )
