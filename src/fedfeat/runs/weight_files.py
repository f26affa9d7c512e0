"""Which files of weights a run began with: what of a network stays as they have it stands nowhere else."""

import hashlib
import json
from collections.abc import Mapping
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from fedfeat.errors import CheckpointError, ConfigError
from fedfeat.files import fields_of, write_once
from fedfeat.runs.directory import stored_config

FILE = "weights.json"


def files(config: Mapping[str, Any]) -> dict[str, Path]:
    """Give the files of weights that a configuration names, by their keys."""
    return {key: Path(path).expanduser() for key, path in _named(config).items()}


def digests(config: Mapping[str, Any]) -> dict[str, str]:
    """Give the digests of these files, by their keys.

    Raises:
        ConfigError: One cannot be read.
    """
    return {key: _sha256(key, path) for key, path in files(config).items()}


def note_weights(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Write the digests, once, where there are any."""
    found = digests(config)
    if found:
        write_once(run_dir / FILE, found)


def noted(run_dir: Path) -> dict[str, str]:
    """Give the digests of the files that a run began with, by their keys; {} where it does not say."""
    try:
        found = json.loads((run_dir / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(digest) for key, digest in found.items()} if isinstance(found, dict) else {}


def check_same_weights(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Refuse files of weights that are not those that the run of a directory began with.

    Raises:
        CheckpointError: One differs, or the file that tells is damaged.
        ConfigError: One cannot be read.
    """
    found, path = digests(config), run_dir / FILE
    if not path.exists():
        return
    with fields_of(path, "hold the digests of the run's weights") as stored:
        differing = [key for key in found if stored.get(key) != found[key]]
    if differing:
        raise CheckpointError(
            f"{differing[0]} must be the file that the run in {run_dir} began with, but its digest is "
            f"{found[differing[0]][:12]} instead of {str(stored.get(differing[0]))[:12]}: bring back the file as it "
            "was, or begin anew in another hydra.run.dir."
        )


def as_begun(run_dir: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give a configuration with its files of weights where they lay when the run began, by which checkpoints know it.

    So they may be moved: which ones they have to be is told by their digests.
    """
    known = noted(run_dir)
    if not known or not (run_dir / "config.yaml").exists():
        return config
    before, found = _named(stored_config(run_dir)), deepcopy(dict(config))
    for key in _named(config).keys() & known.keys() & before.keys():
        *above, name = key.split(".", 2)
        reduce(getitem, above, found)[name] = before[key]
    return found


def _named(config: Mapping[str, Any]) -> dict[str, str]:
    pool = (config.get("pool") or {}).get("weights") or {}
    named = {"model.weights": (config.get("model") or {}).get("weights")}
    named |= {f"pool.weights.{name}": path for name, path in pool.items()}
    return {key: path for key, path in named.items() if path is not None}


def _sha256(key: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError.rule(key, f"name a file that can be read ({error.strerror})", str(path)) from error
