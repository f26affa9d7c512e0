"""The notebook of results runs on the stored runs alone, and says what their pages say."""

import ast
import base64
import json
import re
from pathlib import Path

import pytest
from notebook_runs import Stored, data, run_once, stored
from notebook_runs import printed as text

ROOT = Path(__file__).parents[2]
executed = run_once("results")


class TestAsStored(Stored):
    NAME = "results"


def test_the_verdicts_are_those_of_the_page(executed):
    page = (ROOT / "docs" / "results.md").read_text()
    tables = [data(executed[name], "text/markdown").strip() for name in ("verdicts", "verdicts-ours")]
    assert all(table in page for table in tables)
    assert tables[0] != tables[1]
    assert data(executed["archive"], "text/markdown").strip() in (ROOT / "docs" / "results.md").read_text()


def test_the_question_is_answered_by_the_stored_numbers(executed):
    stored = {
        arm: [
            json.loads((ROOT / f"results/runs/digits/{arm}/seed_{seed}/summary.json").read_text())["final"][
                "global/acc"
            ]
            for seed in range(3)
        ]
        for arm in ("digits_fed2", "digits_fedavg")
    }
    for arm, numbers in stored.items():
        assert f"{arm} {dict(enumerate(numbers))}" in text(executed["values"])
    ahead = sum(a - b for a, b in zip(*stored.values(), strict=True)) / 3
    shown = float(re.search(r"Interval\(mean=([-\d.e]+)", text(executed["question"]))[1])
    assert shown == pytest.approx(ahead, abs=1e-12)
    assert re.search(r"is more than 0: (holds|does not hold|undecided)", text(executed["question"]))


def test_the_curves_are_drawn(executed):
    assert base64.b64decode(data(executed["curves"], "image/png")).startswith(b"\x89PNG")


def test_it_only_calls():
    cells = [cell for cell in stored("results").cells if cell.cell_type == "code"]
    lines = "\n".join(line for cell in cells for line in cell.source.splitlines() if not line.startswith("%"))
    forbidden = (ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While, ast.Try, ast.If)
    assert not [ast.unparse(node) for node in ast.walk(ast.parse(lines)) if isinstance(node, forbidden)]
