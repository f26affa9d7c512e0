"""The pages as a site: all of them are in its menu, its links lead somewhere, the API's pages are those of the code."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages(menu) -> list[str]:
    return [
        page
        for entry in menu
        for value in entry.values()
        for page in (pages(value) if isinstance(value, list) else [value])
    ]


def test_every_page_is_in_the_menu_once():
    there = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))
    assert sorted(pages(SITE["nav"])) == there


def test_the_pages_of_the_api_are_those_of_the_docstrings():
    spec = importlib.util.spec_from_file_location("api_pages", ROOT / "scripts" / "api_pages.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.pages(ROOT / "src")
    assert made.keys() == {f"docs/api/{path.name}" for path in (ROOT / "docs" / "api").glob("*.md")}
    assert [name for name, text in made.items() if (ROOT / name).read_text() != text] == [], "make docs"
    assert "### client.ClientModule.loss" in made["docs/api/methods.md"]
    assert "- `mu`" not in "".join(made.values())  # of a method, which has a page of its own


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_asks_nobody(tmp_path):
    """Strict: a link or an anchor that leads nowhere ends it."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    assert {Path(page).with_suffix(".html") for page in pages(SITE["nav"])} <= built
    start = (tmp_path / "site" / "index.html").read_text()
    assert "fonts.g" not in start
    assert "<h1" in start
