"""Which values of a column each client of a natural partition stands for, kept in the run directory."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedfeat.files import atomic_write_text
from fedfeat.runs.text import csv_table

if TYPE_CHECKING:
    from fedfeat.data.federated import FederatedData

FILE = "client_values.csv"


def write_client_values(run_dir: Path, partition: Mapping[str, Any], data: "FederatedData") -> None:
    """Write client, value and number of training examples, a row each, where the partition goes by a column.

    Args:
        run_dir: Directory of the run.
        partition: The resolved configuration of the partition.
        data: The federation's data.
    """
    name = partition.get("column") or (partition.get("inner") or {}).get("column")
    column = data.dataset.train.columns.get(str(name))
    if column is None:
        return
    rows: list[Sequence[object]] = [("client_id", name, "num_examples")]
    for client_id in range(data.num_clients):
        trained = data.split.train.of(client_id)
        # A value may be held out for validation as a whole.
        every = np.concatenate([trained, data.split.val.of(client_id)])
        values, which = np.unique(column[every], return_inverse=True)
        counts = np.bincount(which[: len(trained)], minlength=len(values))
        rows += [(client_id, *pair) for pair in zip(values.tolist(), counts.tolist(), strict=True)]
    atomic_write_text(run_dir / FILE, csv_table(rows))
