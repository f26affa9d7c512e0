"""Run directories that cannot be used: one readable sentence, and what lies in them stays as it is."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from refusals import digest, named, refused, refused_at_start

from fedfeat.runs.directory import locked


def file_for_run(root: Path) -> None:
    (root / "run").write_text("a file")


def config_not_yaml(root: Path) -> None:
    (root / "run").mkdir()
    (root / "run/config.yaml").write_text("a: [1\nb: {")


def config_a_list(root: Path) -> None:
    (root / "run").mkdir()
    (root / "run/config.yaml").write_text("- 1\n- 2\n")


AT_START = [
    (
        "file for the run directory",
        "seed=0",
        file_for_run,
        r".*/run must be usable for this run, but the system says: File exists",
    ),
    (
        "run directory below a file",
        "hydra.run.dir=/dev/null/run",
        None,
        r".*/dev/null/run must be usable for this run, but the system says: Not a directory",
    ),
    (
        "a run directory without a name",
        "hydra.run.dir=",
        None,
        r"hydra\.run\.dir must name a directory, but it is ''",
    ),
    (
        "config.yaml is not YAML",
        "seed=0",
        config_not_yaml,
        r".*/run/config\.yaml must hold the run's .*, but it is not YAML: while parsing a flow seq",
    ),
    (
        "config.yaml is a list",
        "seed=0",
        config_a_list,
        r".*/run/config\.yaml must hold the run's .*, but it holds a list instead of keys",
    ),
]


@pytest.mark.parametrize(("overrides", "prepare", "sentence"), named(AT_START))
def test_refused_at_start(cli, small, tmp_path, overrides, prepare, sentence):
    refused_at_start(cli, small, overrides, tmp_path, sentence, prepare)


def test_checkpoints_that_are_all_corrupt_are_refused_and_kept(cli, small, finished):
    (finished / "summary.json").unlink()
    for path in (finished / "checkpoints").iterdir():
        path.write_bytes(b"torn")
    before = digest(finished)
    refused(cli(*small), r"No checkpoint in .*/checkpoints can be read: ")
    found = digest(finished)
    assert "No checkpoint in" in (finished / "failure.txt").read_text()
    del found["failure.txt"]
    assert found == before


def test_checkpoints_of_another_configuration_are_refused_and_kept(cli, small, finished):
    """config.yaml was lost, the checkpoints of the earlier run were not."""
    (finished / "summary.json").unlink()
    (finished / "config.yaml").unlink()
    kept = digest(finished / "checkpoints")
    refused(
        cli(*small, "optimizer.lr=0.3"),
        r"checkpoints must be of the same configuration, but those in .* are not\.",
    )
    assert digest(finished / "checkpoints") == kept


def test_a_run_directory_in_use_is_refused(cli, small, finished):
    (finished / "summary.json").unlink()
    before = digest(finished)
    with locked(finished):
        refused(cli(*small), r"hydra\.run\.dir must be free, but another process is running in ")
    assert digest(finished) == before


@pytest.fixture
def mounted(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system, which needs root."""
    folder = tmp_path / "mounted"
    folder.mkdir()

    def mount(options: str) -> Path:
        arguments = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(arguments, capture_output=True, check=False).returncode != 0:
            pytest.skip("mounting a file system needs root")
        return folder

    yield mount
    subprocess.run(["umount", str(folder)], capture_output=True, check=False)


def test_a_full_disk_is_one_sentence(cli, small, mounted):
    folder = mounted("size=64k")
    # 16 * 2000 weights of 4 bytes: the first checkpoint alone is larger than the disk.
    outcome = cli(*small, "model.hidden=[2000]", f"hydra.run.dir={folder / 'run'}")
    refused(outcome, r".* must be usable for this run, but the system says: No space left on device")
    assert not (folder / "run/summary.json").exists()


def test_a_directory_that_cannot_be_written_is_one_sentence(cli, small, mounted):
    folder = mounted("ro,size=64k")
    outcome = cli(*small, f"hydra.run.dir={folder / 'run'}")
    refused(outcome, r".*/run must be usable for this run, but the system says: Read-only file system")
