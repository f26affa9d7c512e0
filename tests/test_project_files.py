"""Files that forges and editors read: versions agree, the citation and the issue forms have their forms."""

import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

import fedfeat

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
RELEASE = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$", re.MULTILINE)


def test_versions_agree():
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))["package"]
    (locked,) = (one["version"] for one in lock if one["name"] == "fedfeat")
    page = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    wheels = set(re.findall(r"fedfeat-([\d.]+)-py3", page))
    newest, date = RELEASE.findall(CHANGES)[0]
    said = {PROJECT["version"], fedfeat.__version__, locked, CITATION["version"], newest, *wheels}
    assert said == {PROJECT["version"]}
    assert str(CITATION["date-released"]) == date


def test_the_changelog_keeps_its_form():
    assert CHANGES.startswith("# Changelog\n")
    releases = RELEASE.findall(CHANGES)
    order = [tuple(map(int, version.split("."))) for version, _ in releases]
    assert order == sorted(order, reverse=True)
    assert [version for version, _ in releases][-1] == "0.1.0"
    kinds = {line.removeprefix("### ") for line in CHANGES.splitlines() if line.startswith("### ")}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


AUTHOR = {
    "type": "object",
    "properties": {
        name: {"type": "string", "minLength": 1} for name in ("name", "family-names", "given-names")
    },
    "anyOf": [{"required": ["name"]}, {"required": ["family-names"]}],
    "additionalProperties": False,
}
REFERENCE = {
    "type": "object",
    "properties": {
        "type": {"enum": ["article", "conference-paper"]},
        "title": {"type": "string", "minLength": 1},
        "notes": {"type": "string"},
        "year": {"type": "integer", "minimum": 2016, "maximum": 2026},
        "conference": {"type": "object", "required": ["name"]},
        "authors": {"type": "array", "minItems": 1, "items": AUTHOR},
    },
    "required": ["type", "title", "authors"],
    "additionalProperties": False,
}
CFF = {
    "type": "object",
    "properties": {
        "cff-version": {"const": "1.2.0"},
        "message": {"type": "string", "minLength": 1},
        "title": {"type": "string"},
        "type": {"const": "software"},
        "version": {"type": "string"},
        "date-released": {"type": "string", "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        "license": {"const": PROJECT["license"]},
        "abstract": {"type": "string"},
        "keywords": {"type": "array", "items": {"type": "string"}},
        "authors": {"type": "array", "minItems": 1, "items": AUTHOR},
        "references": {"type": "array", "items": REFERENCE},
    },
    "required": ["cff-version", "message", "title", "authors"],
    "additionalProperties": False,
}
"""The keys of CFF 1.2 that the file uses, as its schema has them."""


def test_the_citation_is_of_cff_and_names_papers_of_the_methods_page():
    plain = CITATION | {"date-released": str(CITATION["date-released"])}
    assert [error.message for error in Draft7Validator(CFF).iter_errors(plain)] == []
    methods = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").glob("methods*/*.md"))
    methods += (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    for paper in CITATION["references"]:
        first = paper["authors"][0]["family-names"]
        assert first in methods, paper
        assert all(name.strip() in methods for name in paper["notes"].split(",")), paper
        words = re.match(r"[\w -]+", paper["title"].partition(": ")[2] or paper["title"])
        assert words is not None
        sources = "".join(path.read_text(encoding="utf-8") for path in _sources())
        assert words[0].split(" in ")[0].lower() in (methods + sources).lower(), paper


def _sources():
    return (ROOT / "src" / "fedfeat" / "algorithms").glob("*.py")


ATTRIBUTES = {"label", "description", "placeholder", "value", "render", "options", "multiple"}
KINDS = {"markdown": {"value"}, "textarea": {"label"}, "input": {"label"}, "dropdown": {"label", "options"},
         "checkboxes": {"label", "options"}}  # fmt: skip


@pytest.mark.parametrize("path", [one for one in FORMS if one.stem != "config"], ids=lambda path: path.stem)
def test_an_issue_form_is_one(path):
    """GitHub's rules: it shows no form at all that breaks one."""
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form) <= {"name", "description", "title", "labels", "body"}
    assert any(part["type"] != "markdown" for part in form["body"])
    names = [part["id"] for part in form["body"]]
    labels = [part["attributes"]["label"] for part in form["body"]]
    assert len(set(names)) == len(names)
    assert len(set(labels)) == len(labels)
    for part in form["body"]:
        assert set(part) <= {"type", "id", "attributes", "validations"}
        assert KINDS[part["type"]] <= set(part["attributes"]) <= ATTRIBUTES
        assert re.fullmatch(r"[\w-]+", part["id"])
        assert set(part.get("validations", {})) <= {"required"}
        assert "render" not in part["attributes"] or part["type"] == "textarea"
        assert all(isinstance(one["label"], str) for one in part["attributes"].get("options", ()))
    pages = re.findall(r"docs/[\w-]+\.md", path.read_text(encoding="utf-8"))
    assert [page for page in pages if not (ROOT / page).exists()] == []


def test_the_chooser_of_forms_and_the_three_forms_are_there():
    assert {path.stem for path in FORMS} == {"bug", "config", "method", "number"}
    chooser = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml").read_text(encoding="utf-8"))
    assert set(chooser) <= {"blank_issues_enabled", "contact_links"}


def test_the_container_begins_with_the_oldest_python_and_installs_what_make_installs():
    folder = ROOT / ".devcontainer"
    container = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    image = (folder / container["build"]["dockerfile"]).read_text(encoding="utf-8")
    oldest = PROJECT["requires-python"].partition(",")[0].removeprefix(">=")
    assert f"python:{oldest}\n" in image
    assert "pip install" in image
    assert " uv\n" in image
    command, target = container["postCreateCommand"].split()
    assert command == "make"
    assert f"\n{target}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
