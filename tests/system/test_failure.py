"""A run that fails says so in its loggers."""

import pytest
from wandb_file import finished_wandb


@pytest.mark.parametrize(("lr", "exit_code"), [("0.1", 0), ("1e30", 1)])
def test_wandb_gets_the_exit_code_of_the_run(cli, small, tmp_path, monkeypatch, lr, exit_code):
    """At the second learning rate the first client's update is not finite, which ends the run in round 1."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert cli(*small, "logger=wandb_offline", f"optimizer.lr={lr}").code == 2 * exit_code
    _, found = finished_wandb(tmp_path / "run")
    assert found == exit_code


def test_every_logger_is_told_how_the_run_ended(cli, small, tmp_path, monkeypatch):
    from fedfeat.loggers.csv_logger import CsvLogger

    ends, close = [], CsvLogger.close
    monkeypatch.setattr(CsvLogger, "finish", lambda self, summary: ends.append("finish"))
    monkeypatch.setattr(CsvLogger, "close", lambda self, failed=False: (ends.append(failed), close(self)))
    cli(*small, f"hydra.run.dir={tmp_path / 'a'}")
    cli(*small, "optimizer.lr=1e30", f"hydra.run.dir={tmp_path / 'b'}")
    assert ends == ["finish", False, True]
