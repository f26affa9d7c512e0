"""Weights & Biases: an offline run is read back; what needs its server is replaced."""

import pytest
from entries import SUMMARY, record, run, write
from wandb_file import finished_wandb, items

from fedfeat.errors import ConfigError
from fedfeat.loggers.wandb_logger import WandbLogger, run_id


def test_wandb_offline_run_can_be_read_back(tmp_path, picture, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(mode="offline", tags=["a"])
    write(logger, tmp_path, [record(0), record(1, evaluated=False), record(2)], finish=False)
    logger.picture("convergence", picture)
    logger.finish(SUMMARY)
    logger.close()
    found, exit_code = finished_wandb(tmp_path)
    assert exit_code == 0

    history = [items(entry.history.item) for entry in found if entry.HasField("history")]
    curve = [(row["round"], row["global/acc"]) for row in history if "global/acc" in row]
    assert curve == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert history[1]["train/loss"] == 0.5
    (image,) = [row for row in history if "convergence" in row or "convergence/_type" in row]
    assert image["round"] == 2
    assert len(list(tmp_path.glob("wandb/offline-run-*/files/media/images/*.png"))) == 1

    summary = {}
    for entry in found:
        summary.update(items(entry.summary.update))
    assert summary["final/global/acc"] == 0.4
    assert summary["to_target/0.3/rounds"] == 3
    assert summary["seed"] == 3

    opened = next(entry.run for entry in found if entry.HasField("run"))
    assert (opened.run_id, opened.run_group, opened.project) == (run_id(tmp_path), "sweep", "fedfeat")
    assert items(opened.config.update)["data"] == {"name": "digits"}
    axes = {entry.metric.glob_name or entry.metric.name: entry.metric.step_metric for entry in found}
    assert axes["*"] == "round"


def test_wandb_shows_a_run_that_failed_as_failed(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = WandbLogger(mode="offline")
    write(logger, tmp_path, [record(0)], finish=False)
    logger.close(failed=True)
    found, exit_code = finished_wandb(tmp_path)
    assert exit_code == 1
    assert [items(entry.history.item)["round"] for entry in found if entry.HasField("history")] == [0]


def test_wandb_id_belongs_to_the_directory(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir(), second.mkdir()
    assert run_id(first) == run_id(first) == (first / "wandb_id.txt").read_text().strip()
    assert run_id(first) != run_id(second)


def test_wandb_resume_skips_what_the_server_has(tmp_path, monkeypatch):
    import wandb

    logged, asked = [], {}

    class FakeRun:
        resumed, summary = True, {"round": 2}

        def define_metric(self, *args, **kwargs):
            pass

        def log(self, values):
            logged.append(values["round"])

    monkeypatch.setattr(wandb, "init", lambda **kwargs: (asked.update(kwargs), FakeRun())[1])
    write(WandbLogger(), tmp_path, [record(2), record(3)], resumed=1, finish=False)
    assert logged == [3]
    assert (asked["id"], asked["resume"]) == (run_id(tmp_path), "allow")


def test_wandb_refuses_an_unknown_mode_and_a_missing_login(tmp_path, monkeypatch):
    import wandb

    with pytest.raises(ConfigError, match=r"logger\.wandb\.mode must be one of online.*'cloud'"):
        WandbLogger(mode="cloud")

    def no_login(**kwargs):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", no_login)
    with pytest.raises(ConfigError, match=r"logger\.wandb\.mode must be offline or disabled .*No API key"):
        WandbLogger().start(run(tmp_path))
