"""The notebook of feature alignment shows what its runs have measured."""

import ast
import base64
import csv
import json
from pathlib import Path

import pytest
from notebook_runs import Stored, data, printed, run_once, stored

pytestmark = pytest.mark.slow

# What the kernel knows at the end, as JSON.
READ_BACK = """
import json
from pathlib import Path
print(json.dumps({
    "root": str(Path("..").resolve()),
    "runs": [str(run.resolve()) for run in RUNS],
    "rounds": [one.round_idx for one in found],
    "layers": [one.layers for one in found],
    "shared": [one.num_shared for one in found],
    "metrics": {one.name: one.alignment.metrics for one in found},
    "server_tv": {one.name: one.server_tv for one in found},
    "curve": {name: run["align/agreement"].tolist() for name, (run,) in curves.items()},
    "vectors": [list(vectors.shape), vectors.sum(dim=1).tolist()],
}))
"""


executed = run_once("feature_alignment", READ_BACK)


@pytest.fixture(scope="module")
def found(executed):
    """What the kernel knew at the end."""
    return json.loads(printed(executed["read_back"]).splitlines()[-1])


class TestAsStored(Stored):
    NAME = "feature_alignment"


def test_the_runs_lie_where_the_parameters_say(found):
    root = Path(found["root"])
    assert found["runs"] == [f"{root}/logs/notebooks/feature_alignment/{name}" for name in ("fedavg", "fed2")]
    assert all((Path(run) / "summary.json").exists() for run in found["runs"])
    assert found["rounds"] == [10, 10]
    assert {path.name for path in root.iterdir()} <= {
        "logs",
        "notebooks",
        "runtime",
        "ipython",
        "docs",
        "results",
    }
    assert list((root / "notebooks").iterdir()) == []


def test_the_agreement_is_a_share_and_one_where_groups_have_one_class(found):
    assert found["layers"] == [["conv1", "conv2", "fc1", "fc2"]] * 2
    assert found["shared"] == [None, 2]
    fedavg, fed2 = found["metrics"]["digits-fedavg"], found["metrics"]["digits-fed2"]
    assert 0 <= fedavg["align/agreement"] < fed2["align/agreement"] < 1
    assert fed2["align/agreement_conv2"] == fed2["align/agreement_fc1"] == 1.0
    assert fedavg["align/agreement_conv2"] < 1.0


def test_the_tables_hold_these_numbers(executed, found):
    for name, layers in (("agreement", 3), ("distance", 3), ("tv", 4)):
        head, _, *body = data(executed[name], "text/markdown").splitlines()
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
    picture = base64.b64decode(data(executed[name], "image/png"))
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 2_000


def test_the_curves_are_those_of_metrics_csv(found):
    for run, (name, curve) in zip(found["runs"], found["curve"].items(), strict=True):
        with (Path(run) / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert name == f"digits-{Path(run).name}"
        assert rows[0]["align/agreement"] == ""
        measured = {int(row["round"]): row["align/agreement"] for row in rows if row["align/agreement"]}
        assert list(measured) == [2, 4, 6, 8, 10]
        assert [curve[at] for at in measured] == [float(value) for value in measured.values()]


def test_the_vectors_are_of_the_first_layer_with_sum_one(found):
    shape, sums = found["vectors"]
    assert shape == [16, 10]
    assert sums == pytest.approx([1.0] * 16, abs=1e-5)


def test_the_notebook_has_no_logic_of_its_own():
    """It calls: no functions, classes or loops, and one condition, whether the runs are there."""
    cells = [cell.source for cell in stored("feature_alignment").cells if cell.cell_type == "code"]
    text = "\n".join(line for cell in cells for line in cell.splitlines() if not line.startswith("%"))
    nodes = list(ast.walk(ast.parse(text)))
    forbidden = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.Try)
    assert not [ast.unparse(node) for node in nodes if isinstance(node, forbidden)]
    assert len([node for node in nodes if isinstance(node, ast.If)]) == 1
