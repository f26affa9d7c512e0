"""Weights & Biases: an offline run is read back; what needs its server is replaced."""

import json
import time

import pytest
from entries import SUMMARY, record, run, write
from wandb_file import finished_wandb, history_of, items, read_wandb, summary_of


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

    history = history_of(found)
    curve = [(row["round"], row["global/acc"]) for row in history if "global/acc" in row]
    assert curve == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert history[1]["train/loss"] == 0.5
    (image,) = [row for row in history if "figures/convergence/_type" in row]
    assert image["round"] == 2
    assert len(list(tmp_path.glob("wandb/offline-run-*/files/media/images/figures/*.png"))) == 1

    assert summary_of(found) == {"global/acc": 0.4, "comm/total_bytes": 2_500_000, "round": 2}
    config = {}
    for entry in found:
        config.update(items(entry.config.update))
    assert (config["method"], config["data"], config["groups"], config["seed"]) == ("fed2", "digits", 10, 3)
    assert config["published"] == {"global/acc": 0.9}
    assert config["config"] == {"seed": 3, "data": {"name": "digits"}}
    assert config["provenance"] == {"config_sha256": "c", "git_commit": "g"}

    opened = next(entry.run for entry in found if entry.HasField("run"))
    assert (opened.run_id, opened.run_group, opened.project) == (logger.logger.version, "sweep", "fedfeat")
    assert (opened.display_name, opened.job_type) == ("fed2, digits, n_classes, seed=3", "sweep")
    assert list(opened.tags) == ["fed2", "fed2/t1_vgg9", "a"]
    axes = {entry.metric.glob_name or entry.metric.name: entry.metric.step_metric for entry in found}
    assert axes["*"] == axes["global/acc"] == "round"
    assert (axes["over_bytes/*"], axes["over_examples/*"]) == ("comm/total_bytes", "compute/examples")


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

        step = 0

        def log(self, values, step, commit=None):
            if "global/acc" in values:
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


def test_a_round_is_one_row_whose_step_it_is(tmp_path, picture, wandb_logger):
    """A picture comes after its round's metrics, what is written after a checkpoint in a row of its own."""
    logger = wandb_logger()
    logger.start(run(tmp_path))
    for number in range(3):
        logger.log(record(number, **{"comm/total_bytes": 100 * number, "compute/examples": 10 * number}))
        if number:
            logger.picture("encoding", picture)
        logger.secure()
    logger.picture("split", picture)
    logger.finish(SUMMARY)
    logger.close()
    rows = history_of(finished_wandb(tmp_path)[0])
    assert [(row["_step"], row["round"]) for row in rows] == [(0, 0), (1, 1), (2, 2), (3, 2)]
    assert ["figures/encoding/_type" in row for row in rows] == [False, True, True, False]
    assert [row.get("over_bytes/global/acc") for row in rows] == [0.0, 0.1, 0.2, None]
    assert "figures/split/_type" in rows[3]
    assert [sum(row["clients/global_acc/values"]) for row in rows[:3]] == [2, 2, 2]
    assert "clients/train_loss/values" not in rows[1]


def test_a_row_that_a_checkpoint_counts_on_is_on_the_disk(tmp_path, wandb_logger):
    logger = wandb_logger()
    logger.start(run(tmp_path))
    logger.log(record(0))
    logger.log(record(1))
    logger.secure()
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    deadline = time.monotonic() + 10  # W&B alone would write after 15 seconds
    while (rows := [row["round"] for row in history_of(read_wandb(path))]) != [0, 1]:
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
    logger.close()


def test_the_clients_of_the_last_round_are_a_table(tmp_path, wandb_logger):
    write(wandb_logger(), tmp_path, [record(0), record(2, num_clients=3)])
    finished_wandb(tmp_path)
    (path,) = tmp_path.glob("wandb/offline-run-*/files/media/table/clients/*.json")
    assert json.loads(path.read_text()) == {
        "columns": ["client_id", "num_examples", "global_acc", "train_loss"],
        "data": [[k, 10 + k, 0.2, 1 / 3] for k in range(3)],
    }


def test_the_summary_has_ten_numbers_also_where_the_last_round_brings_others(tmp_path, wandb_logger):
    many = {
        f"global/{name}": 0.5 for name in ("client_acc_mean", "client_acc_worst", "loss", "client_acc_p10")
    }
    many |= {"comm/total_bytes": 1, "compute/examples": 2, "compute/flops": 3, "time/total_s": 4}
    last = {**many, "final_all/acc_mean": 0.7}
    logger = wandb_logger()
    write(logger, tmp_path, [record(0, **many), record(1, **last)], finish=False)
    logger.finish({**SUMMARY, "final": {"global/acc": 0.1, "train/loss": 0.5, **last}})
    logger.close()
    names = set(summary_of(finished_wandb(tmp_path)[0]))
    assert len(names) == 10
    assert {"final_all/acc_mean", "global/acc", "round", "time/total_s"} <= names
    assert not {"train/loss", "global/client_acc_p10"} & names


@pytest.mark.parametrize(("code", "marked"), [(143, True), (1, False), (None, False)])
def test_a_preempted_run_asks_its_sweep_to_be_started_again(tmp_path, wandb_logger, code, marked):
    logger = wandb_logger("wandb_offline", "logger.wandb.preemptible=true")
    write(logger, tmp_path, [record(0)], finish=False)
    try:
        raise ValueError("a client failed") if code is None else SystemExit(code)
    except (ValueError, SystemExit):
        logger.close(failed=True)
    found, exit_code = finished_wandb(tmp_path)
    assert exit_code == 1
    assert any(entry.HasField("preempting") for entry in found) == marked
