"""Further facts of the images of a folder, such as the hospital they come from, read from a table of the user's."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from fedfeat.data.image_files import Listing
from fedfeat.errors import DataError

FILE = "file"
"""Name of the first column: the image's path below the folder, as ``train/cat/1.png``."""
Columns = dict[str, np.ndarray]


def read_columns(path: str | Path | None, train: Listing, test: Listing) -> tuple[Columns, Columns]:
    """Read a CSV file with a row per image: its path below the folder under `FILE`, and a value in each further column.

    Every training image has a row; of the test images all have one, or none, and then only training examples have
    columns. A column of whole numbers sorts as numbers, any other as text.

    Args:
        path: The table; None: no columns.
        train: The training images.
        test: The test images.

    Returns:
        Columns of the training and of the test examples, in their order.

    Raises:
        DataError: The table is not such a file; the sentence names file, row and value.
    """
    if path is None:
        return {}, {}
    table = Path(path).expanduser()
    names, rows = _rows(table)
    wanted = [[f"{part.root.name}/{name}" for name in part.names] for part in (train, test)]
    every = {name for part in wanted for name in part}
    if unknown := next((file for file in rows if file not in every), None):
        raise DataError(
            f"{table} must name images of {train.root.parent} under {FILE}, but {unknown!r} is none."
        )
    tests_too = any(file in rows for file in wanted[1])
    if missing := next((file for part in wanted[: 1 + tests_too] for file in part if file not in rows), None):
        raise DataError(f"{table} must have a row for every image, but {missing!r} has none.")
    values = {name: _typed([row[place] for row in rows.values()]) for place, name in enumerate(names)}
    places = {file: place for place, file in enumerate(rows)}
    chosen = [[places[file] for file in part] for part in wanted[: 1 + tests_too]]
    found = [{name: column[part] for name, column in values.items()} for part in chosen]
    return found[0], found[1] if tests_too else {}


def _rows(table: Path) -> tuple[list[str], dict[str, list[str]]]:
    """Give the names of the columns beside `FILE`, and the values of each file."""
    try:
        # Excel writes a byte order mark.
        with table.open(newline="", encoding="utf-8-sig") as file:
            lines = list(_filled(file))
    except (OSError, UnicodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"data.loader.columns must be a readable CSV file, but {table} is not ({reason})."
        ) from error
    _, header = lines[0] if lines else (0, [])
    if len({*header}) < max(len(header), 2) or header[0] != FILE or "" in header:
        rule = f"begin with a line of different names, {FILE} and those of columns, with commas between them"
        raise DataError(f"{table} must {rule}, but it begins with {','.join(header)!r}.")
    rows: dict[str, list[str]] = {}
    for number, (file_name, *values) in lines[1:]:
        if len(values) != len(header) - 1 or "" in values:
            rule = f"have a value for each of {', '.join(header)} in every line"
            raise DataError(f"{table} must {rule}, but line {number} is {','.join((file_name, *values))!r}.")
        if file_name in rows:
            raise DataError(f"{table} must name an image once, but line {number} names {file_name!r} again.")
        rows[file_name] = values
    return header[1:], rows


def _filled(file: TextIO) -> Iterator[tuple[int, list[str]]]:
    """Go through lines with their numbers, from 1; those without any text, as at many files' ends, are left out."""
    reader = csv.reader(file)
    for cells in reader:
        if any(stripped := [cell.strip() for cell in cells]):
            yield reader.line_num, stripped


def _typed(values: list[str]) -> np.ndarray:
    """Give whole numbers as int64, else texts."""
    # Not 007, which would be one with 7.
    whole = all(value.isdecimal() and len(value) < 19 and str(int(value)) == value for value in values)
    return np.array(values, dtype=np.int64 if whole else np.str_)
