"""Notebooks as they lie in the repository: run, small, and without a trace of the machine that ran them."""

import json
import re

import nbformat
import pytest
from notebook_runs import NOTEBOOKS, differences, printed, shown

MOST_KB = 300
MOST_PICTURE_KB = 60
# Of a machine or of a moment: folders, addresses of objects, times that a run took, dates.
TRACES = {
    "an absolute path": re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|usr|opt|var|Users|mnt|data)/"),
    "an address": re.compile(r"\b0x[0-9a-f]{6,}"),
    "a time": re.compile(r"\d ?s/round|time/\w+_s\b|\bseconds\W+\d|\b\d\d:\d\d:\d\d\b"),
    "a day": re.compile(r"\b20\d\d-\d\d-\d\d\b"),
    "a bar": re.compile(r"\r|\x1b|it/s|━|█|\d%\|"),
}


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return nbformat.read(request.param, as_version=4)


def test_there_are_five():
    names = {path.stem for path in NOTEBOOKS}
    assert names == {"start", "feature_alignment", "fedhenn_kernels", "add_a_method", "results"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_enough_for_review(path):
    assert path.stat().st_size < MOST_KB * 1000


def test_pictures_are_modest(notebook):
    sizes = [
        len(output["data"]["image/png"])
        for output in outputs(notebook)
        if "image/png" in output.get("data", {})
    ]
    assert sizes
    assert max(sizes) < MOST_PICTURE_KB * 1000


def test_it_was_run_whole_and_in_order(notebook):
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert sum(bool(cell.outputs) for cell in cells) >= 4
    for output in outputs(notebook):
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr"


def test_outputs_have_no_trace_of_a_machine(notebook):
    """Of no machine, no moment, and no progress bar; in pictures nobody can look here, in text everyone can."""
    text = "\n".join(
        json.dumps({kind: part for kind, part in output.get("data", {}).items() if kind != "image/png"})
        + output.get("text", "")
        for output in outputs(notebook)
    )
    assert {what: found[0] for what, pattern in TRACES.items() if (found := pattern.search(text))} == {}
    assert len(outputs(notebook)) < 30
    assert "widgets" not in notebook.metadata
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata["language_info"] == {"name": "python"}


def test_it_says_how_it_is_opened(notebook):
    assert "`uv run --with jupyterlab jupyter lab notebooks/`" in notebook.cells[0].source


def test_a_comparison_sees_words_and_numbers():
    assert differences("acc 0.71 of 10", "acc 0.70 of 10") == []
    assert differences("[0.   0.34]", "[0.01 0.34]") == []  # numpy's zero
    assert differences("acc 0.91", "acc 0.70") == ["0.91 instead of 0.70"]
    assert differences("12 rounds", "10 rounds") == ["12 instead of 10"]
    assert differences("equal: False", "equal: True") != []
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.v4.new_output("stream", text="a")])
    assert printed(cell) == "a"
    assert shown(cell).strip() == "a"
