"""metrics.csv and clients.csv of a run directory: what everything else about a run is drawn from."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

from fedfeat.files import atomic_open
from fedfeat.loggers.base import RoundLogger, RunInfo
from fedfeat.runs.observed import table_path
from fedfeat.runs.records import ClientRow, RoundRecord
from fedfeat.runs.tables import METRICS, complete_rows

CLIENTS = "clients.csv"
CLIENT_COLUMNS = ("round", *(column.name for column in fields(ClientRow)))


class CsvTable:
    """A CSV file that only grows, whose first column is the round.

    Rows go to the operating system at once and are not kept: a killed process loses at most the line it was
    writing, and memory does not grow with the rounds. A row with a column that is not there yet
    adds the column.

    Args:
        path: The file.
        columns: Columns the file has from the start.
        resumed_round: Rows of later rounds are dropped, and so is a torn line; None starts a new file.
    """

    def __init__(self, path: Path, columns: Iterable[str], resumed_round: int | None) -> None:
        self.path, self.columns = path, list(columns)
        last_round = -1 if resumed_round is None else resumed_round
        self._rewrite(lambda round_idx: round_idx <= last_round)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows and flush them; None and missing values are left empty."""
        rows = list(rows)
        columns = list(dict.fromkeys([*self.columns, *(key for row in rows for key in row)]))
        if columns != self.columns:
            self._file.close()
            self.columns = columns
            self._rewrite(lambda _: True)
        self._writer(self._file).writerows(rows)
        self._file.flush()

    def secure(self) -> None:
        """Wait until the rows are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _rewrite(self, keep: Callable[[int], bool]) -> None:
        """Write the file anew with the present columns and the rows to keep, and open it to append."""
        rows = complete_rows(self.path)
        old = next(rows, [])
        self.columns = list(dict.fromkeys([*self.columns, *old]))
        with atomic_open(self.path) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", newline="")
            writer = self._writer(text)
            writer.writeheader()
            writer.writerows(dict(zip(old, row, strict=True)) for row in rows if keep(int(row[0])))
            text.detach()  # flushes; `atomic_open` closes
        self._file: IO[str] = open(self.path, "a", encoding="utf-8", newline="")  # noqa: SIM115

    def _writer(self, file: IO[str]) -> csv.DictWriter:
        return csv.DictWriter(file, self.columns, lineterminator="\n")


def rows_of(record: RoundRecord) -> dict[str, int]:
    """Count the rows that a record adds to each table, by the table's path within the run directory."""
    if not record.evaluated:
        return {}
    watched = (str(table_path(Path(), name)) for name in record.observed)
    return {METRICS: 1, CLIENTS: len(record.clients), **dict.fromkeys(watched, 1)}


class CsvLogger(RoundLogger):
    """Write ``metrics.csv`` (a row per evaluated round), ``clients.csv`` (one per client in it) and ``observed/*.csv``.

    Numbers have the digits that read back to the same float; what does not exist is left empty.
    """

    def start(self, run: RunInfo) -> None:
        """Open both files; after a resume, without the rows that will come again."""
        self._metrics = CsvTable(run.run_dir / METRICS, ("round", "cohort_size"), run.resumed_round)
        self._clients = CsvTable(run.run_dir / CLIENTS, CLIENT_COLUMNS, run.resumed_round)
        self._run, self._observed = run, dict[str, CsvTable]()

    def log(self, record: RoundRecord) -> None:
        """Append the rows of an evaluated round."""
        if not record.evaluated:
            return
        self._clients.append({"round": record.round_idx, **asdict(client)} for client in record.clients)
        row = {"round": record.round_idx, "cohort_size": len(record.cohort), **record.metrics}
        self._metrics.append([row])
        for name, values in record.observed.items():
            row = {"round": record.round_idx, **{str(i): value for i, value in enumerate(values)}}
            self._table(name).append([row])

    def _table(self, name: str) -> CsvTable:
        """Give the table of what a method watches, opened when it first comes."""
        if name not in self._observed:
            path = table_path(self._run.run_dir, name)
            path.parent.mkdir(exist_ok=True)
            self._observed[name] = CsvTable(path, ("round",), self._run.resumed_round)
        return self._observed[name]

    def secure(self) -> None:
        """Wait until all tables are on the disk."""
        for table in (self._metrics, self._clients, *self._observed.values()):
            table.secure()

    def close(self, failed: bool = False) -> None:
        """Close all files."""
        for table in (self._metrics, self._clients, *self._observed.values()):
            table.close()
