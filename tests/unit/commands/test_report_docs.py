"""Every command of docs/report.md runs, on runs such as its sweeps would leave."""

import json
import re
import shlex
from pathlib import Path

import pytest
from report_runs import add_details, make_run

from fedfeat.commands.report import main

PAGE = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^uv run fedfeat-report ([^#\n]*)", PAGE, re.MULTILINE)
SWEEPS = {
    "first": {},
    "groups": {"structure": {"groups": (5, 10)}},
    "depth": {"structure": {"depth": (2, 4)}},
    "half": {"scenario": {"reduced_fraction": (0.1, 0.5)}},
}


@pytest.fixture
def sweeps(tmp_path):
    """Two algorithms, and two values of the key that is swept."""
    for name, sweep in SWEEPS.items():
        ((section, keys),) = sweep.items() or (("nothing", {}),)
        for number in range(2):
            config = {section: {key: values[number] for key, values in keys.items()}}
            for algorithm in ("fedprox", "fed2"):
                place = tmp_path / "logs" / "sweeps" / name / f"{algorithm}-{number}"
                run = add_details(make_run(place, 0 if keys else number, algorithm, **config))
                summary = json.loads((run / "summary.json").read_text())
                summary["final"] |= {"align/agreement": 0.5, "personal/acc_mean": 0.6}
                (run / "summary.json").write_text(json.dumps(summary))
    return tmp_path


def test_there_are_commands():
    assert len(COMMANDS) >= 7
    assert sum("--html" in command for command in COMMANDS) == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command, sweeps, monkeypatch):
    monkeypatch.chdir(sweeps)
    main(shlex.split(command))
    assert (sweeps / "logs" / "report" / "report.md").exists()
    if "--html" in command:
        assert (sweeps / ("first.html" if "first.html" in command else "logs/report/report.html")).exists()
