"""Personal state of clients: a RAM budget, spill to disk, and versions that a checkpoint can name."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedfeat.errors import CheckpointError
from fedfeat.files import atomic_write_bytes, sync_folder
from fedfeat.server import alone
from fedfeat.tree import TRUSTED, flatten, num_bytes, sha256, unflatten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_THREADS = 8
_VERSION = re.compile(r"(\d+)-(\d+)\.safetensors")


class ClientStore:
    """The memory of every client between its turns.

    Entries live in RAM up to a budget; beyond it, those not used for longest are written to
    ``<client>-<round>.safetensors`` and dropped. A version's file is written once and never changed, so the
    files that a manifest names stay what they were, wherever a process is killed.

    Args:
        directory: Where versions are written; created when the first one is.
        ram_budget_bytes: The most bytes of tensors to hold in RAM.
        trusted: Packages whose record classes may be part of a state.

    Attributes:
        num_bytes: Bytes of tensors held in RAM, at most the budget.
    """

    def __init__(
        self, directory: str | Path, ram_budget_bytes: int, trusted: tuple[str, ...] = TRUSTED
    ) -> None:
        self._directory = Path(directory)
        self._budget, self._trusted = ram_budget_bytes, trusted
        self._versions: dict[int, int] = {}  # client -> round of its newest state
        self._ram: OrderedDict[int, Any] = OrderedDict()  # least recently used first
        self._dirty: set[int] = set()  # in RAM only
        self._unnamed = False  # files were written whose names a power failure may take
        self._whole: set[tuple[int, int]] = set()  # versions whose files have been read
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._versions))

    def get(self, client_id: int) -> Any | None:
        """Give a client's newest state, or None where it has none. It is a value: do not change its tensors.

        Raises:
            CheckpointError: Its file is missing or damaged.
        """
        if client_id not in self._versions:
            return None
        if client_id in self._ram:
            self._ram.move_to_end(client_id)
            return self._ram[client_id]
        state = _read(self._path(client_id, self._versions[client_id]), self._trusted)
        self._hold(client_id, state)
        return state

    def put(self, client_id: int, round_idx: int, state: Any) -> None:
        """Replace a client's state by a tree of tensors, kept detached and on the CPU; its version is the round.

        Raises:
            ValueError: The round is not later than that of the state it replaces.
        """
        before = self._versions.get(client_id, -1)
        if round_idx <= before:
            raise ValueError(
                f"round_idx of client {client_id} must be greater than {before}, but it is {round_idx}."
            )
        self._drop(client_id)
        self._versions[client_id] = round_idx
        self._dirty.add(client_id)
        self._hold(client_id, alone(state))

    def persist(self) -> dict[int, int]:
        """Write the states that are in RAM only; give the manifest: clients' rounds, for `restore` and `collect`."""
        # A file waits for the disk most of its time.
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(self._write, sorted(self._dirty)):
                pass
        self._dirty.clear()
        if self._unnamed:
            sync_folder(self._directory)
            self._unnamed = False
        return {client_id: self._versions[client_id] for client_id in self}

    def check(self, manifest: Mapping[int, int]) -> None:
        """Read every file that a manifest names, unless that was done before.

        Raises:
            CheckpointError: One is missing or damaged.
        """
        with ThreadPoolExecutor(_THREADS) as threads:
            versions = sorted(manifest.items() - self._whole)
            for version, _ in zip(versions, threads.map(self._check, versions), strict=True):
                self._whole.add(version)

    def restore(self, manifest: Mapping[int, int]) -> None:
        """Go back to the states that a manifest names; what came later is forgotten.

        Raises:
            CheckpointError: A file is missing; the store is unchanged then.
        """
        for client_id, round_idx in manifest.items():
            path = self._path(client_id, round_idx)
            if not path.is_file():
                raise CheckpointError(f"{path} must hold the state of client {client_id}, but it is missing.")
        self._versions = dict(manifest)
        self._ram.clear()
        self._dirty.clear()
        self.num_bytes = 0

    def collect(self, keep: Iterable[Mapping[int, int]]) -> None:
        """Remove versions that are neither current nor in a manifest of a loadable checkpoint."""
        manifests = (*keep, self._versions)
        wanted = {self._path(*version) for manifest in manifests for version in manifest.items()}
        for path in self._directory.glob("*.safetensors"):
            if _VERSION.fullmatch(path.name) and path not in wanted:
                path.unlink()

    def _path(self, client_id: int, round_idx: int) -> Path:
        return self._directory / f"{client_id}-{round_idx}.safetensors"

    def _hold(self, client_id: int, state: Any) -> None:
        """Take an entry into RAM as the most recently used, and spill until the budget holds."""
        self._ram[client_id] = state
        self.num_bytes += num_bytes(state)
        while self.num_bytes > self._budget:
            oldest = next(iter(self._ram))
            if oldest in self._dirty:
                self._write(oldest)
            self._drop(oldest)

    def _drop(self, client_id: int) -> None:
        self.num_bytes -= num_bytes(self._ram.pop(client_id, {}))
        self._dirty.discard(client_id)

    def _write(self, client_id: int) -> None:
        state = self._ram[client_id]
        skeleton, named = flatten(state)
        # The format itself does not notice a flipped bit.
        extra = {"skeleton": json.dumps(skeleton), "sha256": sha256(state)}
        path = self._path(client_id, self._versions[client_id])
        atomic_write_bytes(path, save(named, extra), durable_name=False)
        self._unnamed = True

    def _check(self, version: tuple[int, int]) -> None:
        _read(self._path(*version), self._trusted)


def _read(path: Path, trusted: tuple[str, ...]) -> Any:
    try:
        with safe_open(path, "pt") as file:
            extra = file.metadata()
            named = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118 - no mapping
        state = unflatten(json.loads(extra["skeleton"]), named, trusted)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"The client state {path} cannot be read: {error}.") from error
    if extra.get("sha256") != sha256(state):
        raise CheckpointError(f"The client state {path} must match its digest, but it has been altered.")
    return state
