"""What the tests of every notebook share: it runs once, from a fresh start, and is compared with what is stored."""

import importlib
import re
import sys
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[-+]?\d+)?")
NEAR = 0.1
"""How far a printed number may be from the stored one: another processor rounds otherwise, which training passes on."""


def scripts(name):
    """Import one of the scripts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "scripts")
        try:
            return importlib.import_module(name)
        finally:
            sys.modules.pop(name, None)


def stored(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def run_once(name, more=""):
    """Give a fixture: the cells of a notebook by name, after they have run in an empty folder.

    ``more`` is the code of a last cell, ``read_back``.
    """

    @pytest.fixture(scope="module")
    def executed(tmp_path_factory):
        notebook, folder = stored(name), tmp_path_factory.mktemp(name)
        if more:
            notebook.cells.append(nbformat.v4.new_code_cell(more, id="read_back"))
        path = tmp_path_factory.mktemp("source") / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return {cell.id: cell for cell in scripts("notebooks").execute(path, folder).cells}

    return executed


def data(cell, kind):
    (found,) = [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]
    return found


def printed(cell):
    return "".join(output.get("text", "") for output in cell.outputs)


def shown(cell):
    """What a reader sees of a cell: its text, and which kinds of other things."""
    parts = []
    for output in cell.get("outputs", ()):
        kinds = output.get("data", {})
        parts.append(output.get("text", "") or kinds.get("text/markdown") or kinds.get("text/plain", ""))
        parts.append(" ".join(sorted(kind for kind in kinds if not kind.startswith("text/"))))
    return "\n".join(parts)


def differences(new, old):
    """Name what another text says otherwise: words that are not equal, or numbers that are not near."""
    words = [NUMBER.sub("#", text).split() for text in (new, old)]
    if words[0] != words[1]:
        return [" ".join(words[0]), " ".join(words[1])]
    pairs = zip(NUMBER.findall(new), NUMBER.findall(old), strict=True)
    return [
        f"{a} instead of {b}" for a, b in pairs if abs(float(a) - float(b)) > NEAR * max(1, abs(float(b)))
    ]


class Stored:
    """Tests of one notebook, in a file that has a fixture ``executed`` of it."""

    NAME = ""

    def test_no_cell_fails_or_warns(self, executed):
        for cell in executed.values():
            for output in cell.get("outputs", ()):
                assert output["output_type"] != "error"
                assert output.get("name") != "stderr", output["text"]
                assert "Warning" not in output.get("text", "")

    def test_what_is_stored_is_what_its_code_shows(self, executed):
        for cell in stored(self.NAME).cells:
            if cell.cell_type == "code":
                assert differences(shown(executed[cell.id]), shown(cell)) == [], cell.id
