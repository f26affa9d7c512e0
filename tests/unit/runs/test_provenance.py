"""Which commit a run names as that of its code."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from fedfeat.runs import provenance


def git(folder: Path, *words: str) -> str:
    """What a command of git says in a folder."""
    identity = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def project(tmp_path):
    """Somebody's repository, within which the package lies in a folder that it ignores."""
    (tmp_path / ".gitignore").write_text(".venv\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def module_in(folder: Path) -> ModuleType:
    """The module where it lies in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = importlib.util.spec_from_file_location("there", shutil.copy(provenance.__file__, folder))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def commit_in(folder: Path) -> str | None:
    """What the module says where it lies in a folder."""
    return module_in(folder).git_commit()


def test_a_repository_that_does_not_hold_the_code_is_not_named(project):
    assert commit_in(project / ".venv" / "lib" / "site-packages" / "fedfeat" / "runs") is None


def test_one_that_holds_it_is_and_says_whether_files_differ(project):
    place = project / "vendor" / "src" / "fedfeat" / "runs"
    assert commit_in(place) is None, "it is not in the repository yet"
    git(project, "add", "vendor")
    git(project, "commit", "-qm", "two")
    head = git(project, "rev-parse", "HEAD")
    assert commit_in(place) == head
    (project / ".gitignore").write_text("")
    assert commit_in(place) == f"{head}-dirty"
    (project / "vendor" / "COMMIT").write_text("packed\n")
    assert commit_in(place) == "packed"


def test_without_a_repository_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_in(tmp_path / "runs") is None


def test_files_that_no_commit_has_as_they_are(project):
    package = project / "src" / "fedfeat"
    module = module_in(package / "runs")
    (package / "a method.py").touch()
    (package / "notes.txt").touch()
    git(project, "add", "src")
    git(project, "commit", "-qm", "two")
    assert module.uncommitted() == set()
    (package / "a method.py").write_text("x = 1\n")
    (package / "notes.txt").write_text("x")
    (package / "algorithms").mkdir()
    (package / "algorithms" / "mine.py").touch()
    found = {package / "a method.py", package / "algorithms" / "mine.py"}
    assert module.uncommitted() == {path.resolve() for path in found}
    assert module_in(project / ".venv" / "fedfeat" / "runs").uncommitted() == set()


def test_without_a_repository_nothing_is_uncommitted(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert module_in(tmp_path / "fedfeat" / "runs").uncommitted() == set()
