"""The clients of an evaluated round as columns and as a table, without what none of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from fedfeat.runs.records import ClientRow


def columns_of(clients: Sequence[ClientRow], ending: str = "") -> dict[str, list[float]]:
    """Give the finite values of every column, by name, for the columns whose names end so."""
    names = [entry.name for entry in fields(ClientRow) if entry.name.endswith(ending)]
    found = {name: [getattr(row, name) for row in clients] for name in names}
    # No histogram has a place for NaN or infinity.
    finite = {
        name: [v for v in column if v is not None and abs(v) < float("inf")] for name, column in found.items()
    }
    return {name: column for name, column in finite.items() if column}


def table_of(clients: Sequence[ClientRow]) -> tuple[list[str | int], list[list[Any]]]:
    """Give the header and the rows of a table of clients."""
    names = [e.name for e in fields(ClientRow) if any(getattr(row, e.name) is not None for row in clients)]
    return [*names], [[getattr(row, name) for name in names] for row in clients]
