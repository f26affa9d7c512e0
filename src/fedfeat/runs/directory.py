"""A run directory: what stands in it, whether it may be continued, and its summary. Imports nothing heavy."""

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from fedfeat.errors import CheckpointError
from fedfeat.files import atomic_write_text, read_yaml
from fedfeat.runs.text import flatten

_TRIES = 4
# Where a run is stored, shown or executed does not change its numbers, so these do not tell two experiments apart.
_NEUTRAL = (
    "paths",
    "logger",
    "trace",
    "resume",
    "objective",
    "executor",
    "name",
    "group",
    "published",
    "hydra",
)
_NEUTRAL_WITHIN = {
    "federation": ("checkpoint_every", "ram_budget_mb"),
    **dict.fromkeys(("data", "public"), ("root", "cache_dir", "download")),
    "trainer": ("detect_anomaly", "profiler"),
}
# Keys that say nothing where they are not set: without them, digests are those of before there were such keys.
_UNSET = {"model": ("weights", "fresh", "freeze", "cached"), "pool": ("cyclic", "weights", "fresh", "freeze")}
DATA = "data.json"
"""File with what the run's data were, see `runs.data_facts`."""
FAILURE = "failure.txt"
"""File with the sentence of a run's last error, until it goes on."""
_PLACES = re.compile(r"hydra(\.(run|sweep)(\..+)?)?")
_SWEEPS = re.compile(r"hydra(\.mode|[./]sweeper(\..+)?)")
_PASSWORD = re.compile(r"://[^/@\s]+:[^/@\s]*@")


def experiment_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that determines the numbers."""
    kept = {key: value for key, value in config.items() if key not in _NEUTRAL}
    kept |= {name: _without(kept[name], keys) for name, keys in _NEUTRAL_WITHIN.items() if name in kept}
    for name, keys in _UNSET.items():
        if isinstance(section := kept.get(name), Mapping):
            kept[name] = {key: value for key, value in section.items() if value or key not in keys}
    return kept


def fixes_numbers(key: str) -> bool:
    """Whether what a key is set to, of values or of groups, can be a part of `experiment_config`."""
    top, *below = re.split(r"[./]", key)
    return top not in _NEUTRAL and not (below and below[-1] in _NEUTRAL_WITHIN.get(top, ()))


def key_of(override: str) -> str:
    """Name the key that an override sets, adds or deletes."""
    return override.partition("=")[0].lstrip("+~")


def sets_place(override: str) -> bool:
    """Whether an override says where a run or a sweep lies."""
    return bool(_PLACES.fullmatch(key_of(override)))


def sets_sweep(override: str) -> bool:
    """Whether an override says that there is a sweep, or how it goes through its runs."""
    return bool(_SWEEPS.fullmatch(key_of(override)))


def config_sha256(config: Mapping[str, Any]) -> str:
    """Digest of `experiment_config`."""
    text = json.dumps(experiment_config(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def check_same_config(run_dir: Path, config: Mapping[str, Any]) -> None:
    """Refuse a directory that holds a run of another configuration.

    Raises:
        CheckpointError: Names the first differing key and both values.
    """
    if not (run_dir / "config.yaml").exists():
        return
    stored = stored_config(run_dir)
    # What is stored has no passwords.
    old, new = (flatten(experiment_config(without_passwords(one)), ".") for one in (stored, config))
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            raise CheckpointError(
                f"hydra.run.dir must be a new directory or one of the same configuration, but {run_dir} holds a run "
                f"with {key}={old.get(key)!r} instead of {new.get(key)!r}."
            )


def stored_config(run_dir: Path) -> Mapping[str, Any]:
    """The configuration that a run began with.

    Raises:
        CheckpointError: The file is damaged.
    """
    path = run_dir / "config.yaml"
    rule = f"{path} must hold the run's configuration"
    try:
        stored = read_yaml(path)
    except (yaml.YAMLError, ValueError) as error:
        raise CheckpointError(f"{rule}, but it is not YAML: {error}.") from error
    if not isinstance(stored, Mapping) or not stored:
        kind = f"a {type(stored).__name__}" if stored else "nothing"
        raise CheckpointError(f"{rule}, but it holds {kind} instead of keys.")
    return stored


def finished_summary(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a finished run, or None: one that is torn is written again.

    Raises:
        CheckpointError: It is that of no run.
    """
    path = run_dir / "summary.json"
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
        return None
    for key in ("seed", "final"):
        if not isinstance(found, dict) or key not in found:
            raise CheckpointError(
                f"{path} must be the summary of a run, but it has no {key}; without the file, the run goes on from its "
                "checkpoint and writes it again."
            )
    return dict(found)


def fingerprint_of(run_dir: Path) -> tuple[str, ...]:
    """Digests of the run's examples and of its split; nothing where the directory does not say."""
    try:
        return tuple(map(str, json.loads((run_dir / DATA).read_text())["fingerprint"]))
    except (OSError, ValueError, LookupError, TypeError):
        return ()


@contextmanager
def locked(folder: Path, name: str = ".lock", key: str = "hydra.run.dir") -> Iterator[None]:
    """Hold a folder, here that of a run, so that two processes never write into one.

    A folder in which nothing was written is removed in the end.

    Args:
        folder: The folder, which is there.
        name: Name of its lock.
        key: What was set to the folder, for the refusal.

    Raises:
        CheckpointError: Another process holds it, or its lock is no file of its own.
    """
    path = folder / name
    with _open_lock(path) as file:
        try:
            _lock(file)
            # Its last holder may have removed it in between.
            is_here = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except (BlockingIOError, FileNotFoundError) as error:
            rule = f"be free, but another process is running in {folder}"
            raise CheckpointError(f"{key} must {rule}.") from error
        except OSError as error:
            rule = f"be on a file system with locks (flock), but {folder} is not: {error.strerror}"
            raise CheckpointError(f"{key} must {rule}.") from error
        if not is_here:
            raise CheckpointError(f"{key} must be free, but another process has begun in {folder}.")
        try:
            yield
        finally:
            with suppress(OSError):  # it is gone, or another has begun in it
                if [entry.name for entry in folder.iterdir()] == [path.name]:
                    path.unlink()
                    folder.rmdir()


def _lock(file: IO[bytes]) -> None:
    # Whoever asks `is_locked` holds it for a moment.
    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path, name: str = ".lock") -> bool:
    """Whether a process holds a folder; for whoever is alone in starting runs there, for it holds it for a moment."""
    try:
        with (folder / name).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _open_lock(path: Path) -> IO[bytes]:
    # What somebody else has put in its place is neither followed, nor emptied, nor waited for.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
    except OSError as error:
        rule = "be a file that this run may open" if error.errno != errno.ELOOP else "be a file and no link"
        raise CheckpointError(f"{path} must {rule}, but it is not ({error.strerror}).") from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CheckpointError(f"{path} must be a file, but it is of another kind.")
    return file


def write_config(run_dir: Path, config_yaml: str, hydra_files: Mapping[str, str]) -> None:
    """Write config.yaml and .hydra/ (once: a resumed run keeps what it began with), without passwords in addresses."""
    if not (run_dir / "config.yaml").exists():
        (run_dir / ".hydra").mkdir(exist_ok=True)
        for name, text in hydra_files.items():
            atomic_write_text(run_dir / ".hydra" / name, without_passwords(text))
        atomic_write_text(run_dir / "config.yaml", without_passwords(config_yaml))


def without_passwords(node: Any) -> Any:
    """Give a text, or what is made of texts as JSON is, without user and password in addresses."""
    if isinstance(node, Mapping):
        return {key: without_passwords(value) for key, value in node.items()}
    if isinstance(node, list):
        return [without_passwords(value) for value in node]
    return _PASSWORD.sub("://***@", node) if isinstance(node, str) else node


def _without(node: Any, keys: tuple[str, ...]) -> Any:
    if isinstance(node, Mapping):
        return {key: _without(value, keys) for key, value in node.items() if key not in keys}
    return node
