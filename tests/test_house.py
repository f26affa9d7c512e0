"""What the house promises of its size: files and functions that can be read at once."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedfeat"
FILES = sorted(SOURCE.rglob("*.py"))


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def body_lines(function):
    """Lines of a function's body without its docstring."""
    body = function.body
    if ast.get_docstring(function) is not None and len(body) > 1:
        body = body[1:]
    return function.end_lineno - body[0].lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_has_at_most_250_lines_and_a_function_40(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    assert {f.name: body_lines(f) for f in functions(ast.parse(text)) if body_lines(f) > 40} == {}


def test_a_method_is_one_file_with_its_paper_at_the_top():
    """What several methods share has no paper of its own."""
    shared = {"__init__", "alternating", "around_mean", "element_mean", "matched", "own_models"}
    shared |= {
        "distillation",
        "paired_mean",
        "prototype_clients",
        "prototype_servers",
        "shared_inputs",
        "static_norm",
        "versions",
    }
    for path in (SOURCE / "algorithms").glob("*.py"):
        first = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert path.stem in shared or any(
            word in first for word in ("et al.", "and Jaggi", "and Chao", "and Wang")
        ), path
    assert shared <= {path.stem for path in (SOURCE / "algorithms").glob("*.py")}


def test_no_two_modules_of_the_tests_have_one_name():
    """Their folders are no packages: of two modules of one name, the second is refused where both are collected."""
    found = SOURCE.parents[1].joinpath("tests").rglob("*.py")
    names = [path.name for path in found if path.name != "conftest.py"]
    assert sorted(names) == sorted({*names})
