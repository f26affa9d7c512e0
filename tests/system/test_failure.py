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


def test_a_run_is_finished_when_all_its_loggers_have_the_summary(cli, small, tmp_path, monkeypatch):
    """A service that cannot be reached then gets it at the next start, which trains nothing."""
    told, reachable = [], []

    def finish(name):
        def noted(self, summary):
            if name == "csv" and not reachable:
                raise ConnectionError("service unreachable")
            told.append((name, summary["final"]["global/acc"], (tmp_path / "run/summary.json").exists()))

        return noted

    monkeypatch.setattr("fedfeat.loggers.csv_logger.CsvLogger.finish", finish("csv"))
    monkeypatch.setattr("fedfeat.loggers.console.ConsoleLogger.finish", finish("console"))
    words = (*small, "logger=[csv,console]")
    outcome = cli(*words)
    assert outcome.code == 1
    assert "service unreachable" in outcome.stderr
    assert not (tmp_path / "run/summary.json").exists()
    assert [name for name, _, _ in told] == ["console"], "one logger that fails hides nothing from another"
    rows = (tmp_path / "run/metrics.csv").read_text()
    reachable.append(True)
    assert cli(*words).code == 0
    assert (tmp_path / "run/metrics.csv").read_text() == rows
    assert {name for name, _, _ in told[1:]} == {"csv", "console"}
    assert len({acc for _, acc, _ in told}) == 1
    assert not any(finished for _, _, finished in told), "it says that everything is there"
    assert (tmp_path / "run/summary.json").exists()
    assert not (tmp_path / "run/failure.txt").exists()
