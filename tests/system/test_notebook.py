"""The notebook runs from a fresh start, with few rounds, and what it shows is what the runs have measured."""

import ast
import base64
import csv
import json
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "feature_alignment.ipynb"
SMALL = "NUM_ROUNDS, LOCAL_EPOCHS, IMAGES = 2, 0.5, 10"
# What the kernel knows at the end, as JSON.
READ_BACK = """
import json
print(json.dumps({
    "runs": [str(run) for run in RUNS],
    "rounds": [one.round_idx for one in found],
    "layers": [one.layers for one in found],
    "shared": [one.num_shared for one in found],
    "metrics": {one.name: one.alignment.metrics for one in found},
    "server_tv": {one.name: one.server_tv for one in found},
    "curve": {name: run["align/agreement"].tolist() for name, (run,) in curves.items()},
    "vectors": [list(vectors.shape), vectors.sum(dim=1).tolist()],
}))
"""


def source():
    return nbformat.read(NOTEBOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The cells after their execution by name, and the values read back."""
    root = tmp_path_factory.mktemp("notebook")
    (root / "notebooks").mkdir()
    notebook = source()
    at = next(i for i, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", ()))
    notebook.cells.insert(at + 1, nbformat.v4.new_code_cell(SMALL))
    notebook.cells.append(nbformat.v4.new_code_cell(READ_BACK))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(root / "runtime"))
        patch.setenv("IPYTHONDIR", str(root / "ipython"))
        where = {"metadata": {"path": str(root / "notebooks")}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    found = json.loads(notebook.cells[-1].outputs[-1]["text"].splitlines()[-1])
    return root, {cell.id: cell for cell in notebook.cells}, found


def data(cell, kind):
    (found,) = [output["data"][kind] for output in cell.outputs if kind in output.get("data", {})]
    return found


def test_the_runs_lie_where_the_parameters_say(executed):
    root, _, found = executed
    assert found["runs"] == [f"{root}/logs/sweeps/feature_alignment/{name}" for name in ("fedavg", "fed2")]
    assert all((Path(run) / "summary.json").exists() for run in found["runs"])
    assert found["rounds"] == [2, 2]
    assert {path.name for path in root.iterdir()} <= {"logs", "notebooks", "runtime", "ipython"}
    assert list((root / "notebooks").iterdir()) == []


def test_the_agreement_is_a_share_and_one_where_groups_have_one_class(executed):
    _, _, found = executed
    assert found["layers"] == [["conv1", "conv2", "fc1", "fc2"]] * 2
    assert found["shared"] == [None, 2]
    fedavg, fed2 = found["metrics"]["digits-fedavg"], found["metrics"]["digits-fed2"]
    assert 0 <= fedavg["align/agreement"] < fed2["align/agreement"] < 1
    assert fed2["align/agreement_conv2"] == fed2["align/agreement_fc1"] == 1.0
    assert fedavg["align/agreement_conv2"] < 1.0


def test_the_tables_hold_these_numbers(executed):
    _, cells, found = executed
    for name, layers in (("agreement", 3), ("distance", 3), ("tv", 4)):
        head, _, *body = data(cells[name], "text/markdown").splitlines()
        assert head == "| layer | digits-fedavg | digits-fed2 |"
        assert len(body) == layers
        for i, line in enumerate(body):
            layer, *shown = (part.strip() for part in line.strip("|").split("|"))
            assert layer == found["layers"][0][i]
            expected = [
                found["server_tv"][run][i] if name == "tv" else metrics[f"align/{name}_{layer}"]
                for run, metrics in found["metrics"].items()
            ]
            assert shown == [f"{value:.3f}" for value in expected]


@pytest.mark.parametrize("name", ["map", "tv-figure", "rounds", "accuracy"])
def test_the_figures_are_drawn(name, executed):
    _, cells, _ = executed
    picture = base64.b64decode(data(cells[name], "image/png"))
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 5_000


def test_the_curves_are_those_of_metrics_csv(executed):
    _, _, found = executed
    for run, (name, curve) in zip(found["runs"], found["curve"].items(), strict=True):
        with (Path(run) / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert name == f"digits-{Path(run).name}"
        assert rows[0]["align/agreement"] == ""
        assert curve[1:] == [float(row["align/agreement"]) for row in rows[1:]]


def test_the_vectors_are_of_the_first_layer_with_sum_one(executed):
    _, _, found = executed
    shape, sums = found["vectors"]
    assert shape == [16, 10]
    assert sums == pytest.approx([1.0] * 16, abs=1e-5)


def test_no_cell_fails_or_warns(executed):
    """The runs' own progress goes to stderr, too."""
    _, cells, _ = executed
    for cell in cells.values():
        for output in cell.get("outputs", ()):
            assert output["output_type"] != "error"
            assert "Warning" not in output.get("text", ""), output["text"]


def test_no_outputs_are_kept_in_git():
    notebook = source()
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None
    assert "widgets" not in notebook.metadata


def test_the_notebook_has_no_logic_of_its_own():
    """It calls: no functions, classes or loops, and one condition, whether the runs are there."""
    cells = [cell.source for cell in source().cells if cell.cell_type == "code"]
    text = "\n".join(line for cell in cells for line in cell.splitlines() if not line.startswith("%"))
    nodes = list(ast.walk(ast.parse(text)))
    forbidden = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.Try)
    assert not [ast.unparse(node) for node in nodes if isinstance(node, forbidden)]
    assert len([node for node in nodes if isinstance(node, ast.If)]) == 1
