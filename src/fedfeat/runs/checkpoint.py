"""Checkpoints of a run: complete or absent, and read back from the newest one that is whole."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.torch import load, save

from fedfeat.config.trust import targets
from fedfeat.errors import CheckpointError
from fedfeat.files import atomic_write_bytes, atomic_write_text
from fedfeat.params import standalone
from fedfeat.tree import TRUSTED, flatten, unflatten

_log = logging.getLogger("fedfeat")
# A method may have parts of these, but its records are not theirs.
_NO_METHODS = ("hydra", "pytorch_lightning", "torch", "torchvision")
_NAME = re.compile(r"(\d{6,})\.(json|safetensors)")


class Checkpoint(NamedTuple):
    """Everything that a run needs to go on.

    Attributes:
        round_idx: Rounds that are done.
        server_state: The server's state, any tree.
        counters: Cumulative bytes, examples and seconds.
        manifest: The version of each client's state, as `ClientStore.persist` gives it.
        config_sha256: Digest of the configuration that the run was started with.
        extra: Whatever else the run keeps, as JSON.
    """

    round_idx: int
    server_state: Any
    counters: dict[str, float]
    manifest: dict[int, int]
    config_sha256: str
    extra: dict[str, Any]


class CheckpointFolder:
    """The newest checkpoints of one run.

    A checkpoint is ``<round>.safetensors`` (the tensors) and ``<round>.json`` (all else and the digests of
    both). The second is written last and each is renamed into place, so a checkpoint exists only once it is
    complete.

    Args:
        directory: Where they are; created by the first save.
        keep: How many to keep, at least 1.
        trusted: Packages whose record classes may be part of the server's state.
    """

    def __init__(self, directory: str | Path, keep: int = 2, trusted: tuple[str, ...] = TRUSTED) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, but it is {keep}.")
        self.directory, self._keep, self._trusted = Path(directory), keep, trusted

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove the oldest ones.

        Raises:
            CheckpointError: The state could not be read back.
            OSError: It cannot be written; the checkpoints before it stay as they were.
        """
        skeleton, tensors = flatten(checkpoint.server_state)
        unflatten(skeleton, tensors, self._trusted)  # refused now what could not be read back after a crash
        data = save(standalone(tensors))
        body = checkpoint._asdict() | {
            "counters": {key: float(value) for key, value in checkpoint.counters.items()},
            "manifest": sorted(checkpoint.manifest.items()),
            "skeleton": skeleton,
            "tensors_sha256": hashlib.sha256(data).hexdigest(),
        }
        del body["server_state"]
        body = json.loads(
            json.dumps(body)
        )  # the digest is of what will be read: JSON turns keys into strings
        text = json.dumps({"sha256": _digest(body), "body": body})
        tensor_file = self._file(checkpoint.round_idx, "safetensors")
        # Saving a round again must not tear it: equal tensors stay where they are.
        if not (tensor_file.is_file() and tensor_file.read_bytes() == data):
            atomic_write_bytes(tensor_file, data)
        atomic_write_text(self._file(checkpoint.round_idx, "json"), text)
        self._prune(checkpoint.round_idx)

    def rounds(self) -> list[int]:
        """List the rounds that have a checkpoint, whole or not, oldest first."""
        return self._indices("json")

    def load(self, round_idx: int) -> Checkpoint:
        """Read one checkpoint.

        Raises:
            CheckpointError: It is missing, torn or altered.
        """
        body = self._body(round_idx)
        tensor_file = self._file(round_idx, "safetensors")
        try:
            data = tensor_file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{tensor_file} cannot be read: {error}.") from error
        if body["tensors_sha256"] != hashlib.sha256(data).hexdigest():
            raise CheckpointError(
                f"{tensor_file} must match the digest in its json, but it has been altered."
            )
        state = unflatten(body["skeleton"], load(data), self._trusted)
        own = {name: body[name] for name in ("round_idx", "counters", "config_sha256", "extra")}
        return Checkpoint(server_state=state, manifest=dict(body["manifest"]), **own)

    def load_latest(self, check: Callable[[Checkpoint], None] | None = None) -> Checkpoint | None:
        """Read the newest whole checkpoint, with a warning for each newer one that is not.

        Args:
            check: Raises `CheckpointError` where what lies elsewhere, such as `ClientStore.check`, is not whole.

        Returns:
            None where there is no checkpoint at all.

        Raises:
            CheckpointError: There are checkpoints, and all are torn or altered.
        """
        reasons: list[str] = []
        for round_idx in sorted({*self.rounds(), *self._indices("safetensors")}, reverse=True):
            text_file = self._file(round_idx, "json")
            if not text_file.exists():  # never became a checkpoint: the process was killed while writing it
                _log.warning("The checkpoint of round %d is ignored: %s is missing.", round_idx, text_file)
                continue
            try:
                checkpoint = self.load(round_idx)
                if check is not None:
                    check(checkpoint)
            except CheckpointError as error:
                _log.warning("The checkpoint of round %d is ignored: %s", round_idx, error)
                reasons.append(str(error))
                continue
            if reasons:
                _log.warning(
                    "The newest checkpoint that is whole, that of round %d, is used instead.", round_idx
                )
            return checkpoint
        if reasons:
            raise CheckpointError(f"No checkpoint in {self.directory} can be read: {' '.join(reasons)}")
        return None

    def manifests(self) -> list[dict[int, int]]:
        """List the manifests of all checkpoints, for `ClientStore.collect`."""
        found = []
        for round_idx in self.rounds():
            try:
                found.append(dict(self._body(round_idx)["manifest"]))
            except CheckpointError as error:
                _log.warning("The checkpoint of round %d is ignored: %s", round_idx, error)
        return found

    def _body(self, round_idx: int) -> dict[str, Any]:
        """Read all of a checkpoint but its tensors."""
        path = self._file(round_idx, "json")
        try:
            document = json.loads(path.read_bytes())
            digest, body = document["sha256"], document["body"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}.") from error
        if digest != _digest(body):
            raise CheckpointError(f"{path} must match its digest, but it has been altered.")
        return body

    def _file(self, round_idx: int, kind: str) -> Path:
        return self.directory / f"{round_idx:06d}.{kind}"

    def _indices(self, kind: str) -> list[int]:
        matches = (_NAME.fullmatch(path.name) for path in self.directory.glob(f"*.{kind}"))
        return sorted(int(match[1]) for match in matches if match)

    def _prune(self, newest: int) -> None:
        """Keep the newest checkpoints up to the one just written; later ones are not this run's to remove."""
        kept = [round_idx for round_idx in self.rounds() if round_idx <= newest][-self._keep :]
        for kind in ("json", "safetensors"):  # the json first: without it, the rest is no checkpoint
            for round_idx in self._indices(kind):
                if round_idx <= newest and round_idx not in kept:
                    self._file(round_idx, kind).unlink()


def trusted_packages(config: Mapping[str, Any]) -> tuple[str, ...]:
    """List the packages whose records a run's checkpoints may hold: ours, and those its method comes from.

    Args:
        config: The configuration that the user has given, or that `config.trust.check_stored` has accepted, resolved.
    """
    roots = (str(name).partition(".")[0] for _, name in targets(config["algorithm"]))
    return tuple(dict.fromkeys((*TRUSTED, *(root for root in roots if root not in _NO_METHODS))))


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
