"""References lead somewhere: `methods/fed2.md#pairing` in code, presets and pages names a heading in docs."""

import fnmatch
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDERS = ("src", "configs", "docs", "scripts", "tests", "notebooks")
SUFFIXES = (".py", ".yaml", ".md", ".ipynb", ".sh", ".sbatch", ".toml")

REFERENCE = re.compile(r"(?<![\w/-])((?:methods/)?[a-z][\w-]*\.md|README\.md)#([\w-]+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGE = re.compile(r"(?<![\w./-])docs/((?:methods/)?[\w-]+\.md)")
# Papers' notes that are in no repository; the brackets keep this file out of what it looks for.
OUTSIDE = re.compile(r"\bMETHOD[S](?:\.md)?\s+\d|(?<![\w.])4\.3[a-k](?!\w)|\bDESIG[N]\b")


@cache
def texts() -> dict[str, str]:
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    found += [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")]
    kept = [path for path in found if not {"__pycache__", ".ipynb_checkpoints"} & set(path.parts)]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(kept)}


def headings(page: Path) -> list[str]:
    """Anchors of a page's headings as GitHub makes them; lines of code blocks are none."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles]


@cache
def anchors(page: Path) -> frozenset[str]:
    return frozenset(headings(page)) if page.exists() else frozenset()


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_every_reference_names_a_section():
    found = [(name, *match) for name, text in texts().items() for match in REFERENCE.findall(text)]
    assert len(found) > 30, "few references: the pattern is wrong"
    lost = [
        f"{name}: {page}#{anchor}"
        for name, page, anchor in found
        if anchor not in anchors(home(name, page) / page)
    ]
    assert lost == []


def home(name: str, page: str) -> Path:
    """Give the folder that a page is named from in a file: docs, but for what stands beside it or above."""
    if page == "README.md":
        return ROOT
    beside = (ROOT / name).parent
    return beside if beside.is_relative_to(DOCS) and (beside / page).exists() else DOCS


def test_nothing_cites_notes_that_are_not_here():
    cited = [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts().items()
        for number, line in enumerate(text.splitlines(), 1)
        if OUTSIDE.search(line)
    ]
    assert cited == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_of_a_page_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    lost = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


def test_pages_that_are_named_exist():
    found = {(name, page) for name, text in texts().items() for page in PAGE.findall(text)}
    assert found
    assert sorted((name, page) for name, page in found if not (DOCS / page).exists()) == []


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_headings_of_a_page_differ(page):
    found = headings(page)
    assert sorted({anchor for anchor in found if found.count(anchor) > 1}) == []


@pytest.mark.parametrize("page", ["methods", "networks", "metrics", "randomness", "crash-safety"])
def test_paths_of_a_page_exist(page):
    text = texts()[f"docs/{page}.md"]
    found = re.findall(r"(?<![\w./])(?:src|configs|docs|tests|scripts)/[\w./-]*\w", text)
    assert sorted(path for path in found if not (ROOT / path).exists()) == []


def test_the_page_of_randomness_has_every_purpose():
    call = re.compile(r"(?:derive_seed|numpy_generator)\(\s*[\w.\[\]\"]+,\s*f?\"([^\"]+)\"")
    sources = [text for name, text in texts().items() if name.startswith("src")]
    used = {purpose.replace("{name}", "<name>") for text in sources for purpose in call.findall(text)}
    rows = [
        line.split("|")[1] for line in texts()["docs/randomness.md"].splitlines() if line.startswith("| `")
    ]
    assert {name for row in rows for name in re.findall(r"`([^`]+)`", row)} == used


def test_the_page_of_metrics_has_every_name():
    kinds = "global|personal|local_pre_agg|final_all|val|train|comm|compute|clients|time|align|fusion"
    sources = "\n".join(text for name, text in texts().items() if name.startswith("src"))
    used = set(re.findall(rf"\"((?:{kinds})/\w+)\"", sources))
    assert len(used) > 10
    rows = [line.split("|")[1] for line in texts()["docs/metrics.md"].splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    # `global/client_acc` in code is the start of `global/client_acc_*`.
    named += [name.removesuffix("_*") for name in named]
    assert sorted(name for name in used if not any(fnmatch.fnmatch(name, known) for known in named)) == []
