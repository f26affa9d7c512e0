"""Weights & Biases: an offline run is read back; what needs its server is replaced."""

import pytest
from entries import SUMMARY, record, write
from wandb_file import finished_wandb, items


@pytest.fixture
def wandb_logger(loggers, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    return lambda choice="wandb_offline", *overrides: loggers(choice, *overrides)["wandb"]


def test_wandb_offline_run_can_be_read_back(tmp_path, picture, wandb_logger):
    logger = wandb_logger("wandb_offline", "logger.wandb.tags=[a]")
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

    summary, config = {}, {}
    for entry in found:
        summary.update(items(entry.summary.update))
        config.update(items(entry.config.update))
    assert summary["final/global/acc"] == 0.4
    assert summary["to_target/0.3/rounds"] == 3
    assert summary["seed"] == 3
    assert config["data"] == {"name": "digits"}

    opened = next(entry.run for entry in found if entry.HasField("run"))
    assert (opened.run_id, opened.run_group, opened.project) == (logger.logger.version, "sweep", "fedfeat")
    assert (opened.display_name, list(opened.tags)) == ("digits-fed2", ["a"])
    axes = {entry.metric.glob_name or entry.metric.name: entry.metric.step_metric for entry in found}
    assert axes["*"] == "round"


def test_wandb_shows_a_run_that_failed_as_failed(tmp_path, wandb_logger):
    logger = wandb_logger()
    write(logger, tmp_path, [record(0)], finish=False)
    logger.close(failed=True)
    found, exit_code = finished_wandb(tmp_path)
    assert exit_code == 1
    assert [items(entry.history.item)["round"] for entry in found if entry.HasField("history")] == [0]


def test_wandb_offline_goes_on_under_its_id_without_a_round_twice(tmp_path, wandb_logger):
    for rounds, resumed in [((0, 1, 2), None), ((2, 3), 1)]:
        write(wandb_logger(), tmp_path, [record(i) for i in rounds], resumed)
    starts = [finished_wandb(tmp_path, number)[0] for number in (0, 1)]
    rows = [
        [items(entry.history.item)["round"] for entry in found if entry.HasField("history")]
        for found in starts
    ]
    assert rows == [[0, 1, 2], [3]]
    ids = {entry.run.run_id for found in starts for entry in found if entry.HasField("run")}
    assert len(ids) == 1


def test_wandb_resume_skips_what_the_server_has(tmp_path, wandb_logger, monkeypatch):
    """The process had logged rounds 0 to 2, but round 2 was not uploaded when it was killed."""
    import wandb

    logged, asked = [], {}

    class FakeRun:
        id, resumed, summary = "abc", False, {}

        def define_metric(self, *args, **kwargs):
            pass

        class config:
            update = staticmethod(lambda *args, **kwargs: None)

        def log(self, values):
            logged.append(values["round"])

        def finish(self, exit_code):
            pass

    monkeypatch.setattr(wandb, "init", lambda **kwargs: (asked.update(kwargs), FakeRun())[1])
    first = wandb_logger("wandb")
    write(first, tmp_path, [record(0), record(1), record(2)], finish=False)
    FakeRun.resumed, FakeRun.summary = True, {"round": 1}
    write(wandb_logger("wandb"), tmp_path, [record(1), record(2), record(3)], resumed=0, finish=False)
    assert logged == [0, 1, 2, 2, 3]
    assert (asked["id"], asked["resume"], asked["mode"]) == ("abc", "allow", "online")


def test_wandb_can_be_disabled(tmp_path, wandb_logger, picture):
    logger = wandb_logger("wandb", "logger.wandb.mode=disabled")
    write(logger, tmp_path, [record(0)], finish=False)
    logger.picture("convergence", picture)
    logger.finish(SUMMARY)
    logger.close()
    assert not list(tmp_path.glob("wandb/*run-*"))
