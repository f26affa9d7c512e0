"""Which network each client runs, and the server's own."""

import logging
from collections.abc import Callable, Hashable

import numpy as np
import torch

from fedfeat.models.class_map import kept_sets
from fedfeat.models.flops import training_flops
from fedfeat.models.group_rows import rows_of, take_rows
from fedfeat.models.grouped import GroupedNetwork, GroupSeparation
from fedfeat.models.grouped_layers import ClassSets
from fedfeat.models.network import Network
from fedfeat.params import copy_into
from fedfeat.types import Networks

_log = logging.getLogger("fedfeat")


class OneNetwork:
    """Every client runs the server's network.

    Args:
        build: Makes it with the common initial weights, the same at every call.
    """

    def __init__(self, build: Callable[[], Network]) -> None:
        self._build = build

    def key(self, client_id: int, round_idx: int = 0) -> None:
        """Give None for everyone."""

    def kinds(self, num_clients: int) -> list[int]:
        """Name no client."""
        return []

    def build(self, key: Hashable = None) -> Network:
        """Build the network."""
        return self._build()


class TrimmedNetworks:
    """Clients run the groups of a group-separated network that hold a class of theirs (Psi-Net Eq. 6).

    A key is the class sets of the kept groups, in the network's order.

    Args:
        build: Makes the network with the groups asked for (None: all) and fresh weights, the same at every call.
        class_counts: Training examples per client and class (K, C).
    """

    def __init__(self, build: Callable[[ClassSets | None], Network], class_counts: np.ndarray) -> None:
        self._build = build
        whole = build(None)
        assert isinstance(whole, GroupedNetwork)
        self._whole = whole
        # Who has no examples trains nothing, and has the whole network like whoever joins later.
        sets = whole.class_sets
        self._keys = [kept_sets(sets, counts) or sets for counts in class_counts.tolist()]

    def key(self, client_id: int, round_idx: int = 0) -> ClassSets | None:
        """Give the class sets of a client's groups; None if it has all of them."""
        own = self._keys[client_id]
        return None if own == self._whole.class_sets else own

    def kinds(self, num_clients: int) -> list[int]:
        """Name no client: parts of the server's network, of which there may be thousands, have its kinds of layers."""
        return []

    def build(self, key: Hashable = None) -> Network:
        """Build a client's network, with its part of the common initial weights."""
        network = self._build(key)  # type: ignore[arg-type]
        if isinstance(network, GroupedNetwork) and key is not None:
            rows = rows_of(self._whole.group_rows(), self._whole.class_sets, network.class_sets)
            copy_into(network, take_rows(self._whole.state_dict(), rows))
        return network


def separated(
    spec: GroupSeparation,
    base: Callable[[], Network],
    seeded: Callable[[Callable[[], Network]], Network],
    class_counts: np.ndarray,
    class_names: tuple[str, ...],
    seed: int,
) -> Networks:
    """Give the networks of a group-separated federation.

    Args:
        spec: How the network is separated.
        base: Makes the network as it was.
        seeded: Calls a function under the common initial randomness.
        class_counts: See `TrimmedNetworks`.
        class_names: Names of the classes.
        seed: The experiment's seed, for a random class map.
    """
    with torch.device("meta"):
        shapes = base()
    sets = spec.sets(shapes, class_names, seed)
    fixed = spec.matched(shapes, sets)

    def build(kept: ClassSets | None = None) -> Network:
        return seeded(lambda: fixed(base(), sets, kept))

    networks = TrimmedNetworks(build, class_counts) if spec.trim else OneNetwork(build)
    _log.info("%s", _comparison(networks.build(), shapes, spec.boundary_pairing == "paired"))
    return networks


def _comparison(network: Network, dense: Network, paired: bool) -> str:
    """Set the group-separated network beside what it was."""
    if isinstance(network, GroupedNetwork):
        what = f"{network.num_shared} shared layers and {len(network.class_sets)} groups"
        what += ", to which the slices of the last shared one belong" if paired else ""
    else:
        what = "equal widths and norms without groups"
    sizes = [sum(p.numel() for p in one.parameters()) for one in (network, dense)]
    share = training_flops(network) / training_flops(dense)
    return f"structure: {what}; {sizes[0]:,} parameters ({sizes[1]:,} before), {share:.3f} of the FLOPs"
