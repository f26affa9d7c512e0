"""docs/tuning.md: its command lines, each run; a search as far as its first commands."""

import re
import shlex
from pathlib import Path

import pytest

from fedfeat.commands import tune, watch

PAGE = (Path(__file__).parents[2] / "docs" / "tuning.md").read_text(encoding="utf-8")
LINES = [
    shlex.split(line, comments=True)[2:]
    for block in re.findall(r"^```bash\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def test_there_are_commands():
    assert {line[0] for line in LINES} == {"fedfeat-tune", "fedfeat-watch"}
    assert len(LINES) == 8


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_a_command_does_what_the_page_says(line, tmp_path, console, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    if line[0] == "fedfeat-watch":
        Path(line[1]).mkdir(parents=True)
        code, out, err = console(watch.main, *line[1:])
        assert (code, out.splitlines()[0], err) == (0, "no run yet", "")
        return
    code, out, err = console(tune.main, *line[1:], *(["--dry-run"] if "--dry-run" not in line else []))
    assert (code, err) == (0, "")
    commands = [found for found in out.splitlines() if found.startswith("fedfeat ")]
    assert len(commands) == 3
    fixed = [word for word in line[1:] if "=" in word]
    assert all(set(fixed) <= set(shlex.split(found)) for found in commands)
