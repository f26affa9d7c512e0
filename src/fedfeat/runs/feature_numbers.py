"""The numbers behind an encoding map, in a ``.npz`` beside it: the picture can be drawn again, or another one.

For a run ``R`` the file has ``R/primary/<layer>``, int16 (rows, neurons), one row per client and -1 for no class;
``R/clients``, the ids of these clients, empty where the one row is the server's; and ``R/metrics`` with ``R/values``,
the ``align/*`` that were measured.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from fedfeat.errors import CheckpointError
from fedfeat.features.diagnostics import Alignment
from fedfeat.files import atomic_write_bytes

SERVER = "server"
"""What the server's model is called where it stands among clients."""


def rows_of(found: Alignment) -> list[str]:
    """Name the rows of an encoding map."""
    return [str(client_id) for client_id in found.client_ids] or [SERVER]


def write_alignments(path: Path, found: Mapping[str, Alignment]) -> None:
    """Write what was found in one or several runs."""
    arrays: dict[str, np.ndarray] = {}
    for name, one in found.items():
        for layer, clients in zip(one.layers, one.primaries, strict=True):
            arrays[f"{name}/primary/{layer}"] = torch.stack(clients).numpy().astype(np.int16)
        arrays[f"{name}/clients"] = np.array(one.client_ids, dtype=np.int64)
        arrays[f"{name}/metrics"] = np.array(list(one.metrics), dtype=np.str_)
        arrays[f"{name}/values"] = np.array(list(one.metrics.values()), dtype=np.float64)
    write_arrays(path, arrays)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to a ``.npz``, completely or not at all."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    atomic_write_bytes(path, buffer.getvalue())


def read_alignment(path: Path) -> Alignment:
    """Read what was found in one run.

    Raises:
        CheckpointError: The file is damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
        (name,) = (key.removesuffix("/clients") for key in arrays if key.endswith("/clients"))
        start = f"{name}/primary/"
        primaries = {key.removeprefix(start): rows for key, rows in arrays.items() if key.startswith(start)}
        metrics = zip(arrays[f"{name}/metrics"].tolist(), arrays[f"{name}/values"].tolist(), strict=True)
        return Alignment(
            tuple(primaries),
            tuple(tuple(torch.from_numpy(rows.astype(np.int64))) for rows in primaries.values()),
            tuple(arrays[f"{name}/clients"].tolist()),
            dict(metrics),
        )
    except Exception as error:  # what zip files and their arrays raise has no common type
        raise CheckpointError(
            f"{path} must be as the run wrote it, but it cannot be read: {error}."
        ) from error
