"""Lightning's loggers: what they wrote is read back with each service's own reader."""

import json
import zipfile
from functools import partial
from typing import ClassVar

import pytest
from entries import SUMMARY, record, run, write
from pytorch_lightning.loggers import CSVLogger

from fedfeat.errors import ConfigError
from fedfeat.loggers.lightning import LightningLogger

# MLflow, Comet, TensorBoard and its protobuf warn at import and afterwards; that is theirs.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_any_logger_of_lightning_gets_rounds_and_configuration(tmp_path):
    logger = LightningLogger(partial(CSVLogger, name=None), {"save_dir": "run_dir"}, version="csv")
    write(logger, tmp_path, [record(0), record(1, evaluated=False), record(2)])
    header, *lines = (tmp_path / "csv" / "metrics.csv").read_text().splitlines()
    found = [dict(zip(header.split(","), line.split(","), strict=True)) for line in lines]
    assert [(row["step"], row["round"], row["global/acc"]) for row in found[:3]] == [
        ("0", "0", "0.0"),
        ("1", "1", "0.1"),
        ("2", "2", "0.2"),
    ]
    assert (found[0]["cohort_size"], found[-1]["final/global/acc"]) == ("3", "0.4")
    assert "name: digits" in (tmp_path / "csv" / "hparams.yaml").read_text()


class Remembering:
    """A logger of a service that keeps its runs, without the service."""

    starts: ClassVar[list] = []

    def __init__(self, run_id=None):
        self.version, self.steps, self.ends, self.hyperparams = run_id or "abc", [], [], []
        self.starts.append(self)

    def log_hyperparams(self, params):
        self.hyperparams.append(params)

    def log_metrics(self, metrics, step):
        self.steps.append(step)

    def save(self):
        pass

    def finalize(self, status):
        self.ends.append(status)


@pytest.mark.parametrize(
    ("killed", "rounds"), [(False, [[0, 1, 2], [3], [4, 5]]), (True, [[0, 1, 2], [2, 3], [4, 5]])]
)
def test_a_resumed_run_has_one_id_and_no_round_twice(tmp_path, monkeypatch, killed, rounds):
    """The checkpoint is of round 1; a service that cannot tell gets round 2 again after a start that was killed."""
    monkeypatch.setattr(Remembering, "starts", [])
    for first, last, resumed in [(0, 2, None), (2, 3, 1), (2, 5, 1)]:
        logger = LightningLogger(Remembering, {"run_id": "id"})
        write(logger, tmp_path, [record(i) for i in range(first, last + 1)], resumed, finish=False)
        if not killed or last > 2:
            logger.close(failed=True)
    assert [one.steps for one in Remembering.starts] == rounds
    assert {one.version for one in Remembering.starts} == {"abc"}
    assert [len(one.hyperparams) for one in Remembering.starts] == [1, 0, 0]
    assert [one.ends for one in Remembering.starts] == [[] if killed else ["failed"], ["failed"], ["failed"]]


def test_a_round_that_the_service_did_not_take_is_given_again(tmp_path, monkeypatch):
    monkeypatch.setattr(Remembering, "starts", [])
    logger = LightningLogger(Remembering, {"run_id": "id"})
    write(logger, tmp_path, [record(0), record(1)], finish=False)
    logger.logger.save = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        logger.log(record(2))
    logger.close(failed=True)
    logger = LightningLogger(Remembering, {"run_id": "id"})
    write(logger, tmp_path, [record(1), record(2), record(3)], 0, finish=False)
    assert Remembering.starts[-1].steps == [2, 3]


def test_directories_have_ids_of_their_own(tmp_path, loggers):
    for name in "ab":
        (tmp_path / name).mkdir()
        write(loggers("wandb_offline")["wandb"], tmp_path / name, [record(0)])
    first, second = (
        json.loads((tmp_path / name / "loggers" / "WandbLogger.json").read_text()) for name in "ab"
    )
    assert first["id"] != second["id"]
    assert first["round"] == second["round"] == 0


def test_what_cannot_start_is_one_sentence(tmp_path, loggers, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "short")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    begin = r"logger must name services that can start, but WandbLogger cannot: "
    with pytest.raises(ConfigError, match=begin + r".*API key must have.*wandb_offline, comet_offline and"):
        loggers("wandb")["wandb"].start(run(tmp_path))
    with pytest.raises(ConfigError, match=begin + r".*mode Input should be 'online', 'offline'.*'cloud'"):
        loggers("wandb", "logger.wandb.mode=cloud")["wandb"].start(run(tmp_path))
    with pytest.raises(ConfigError, match=begin + r".*unexpected keyword argument 'nope'"):
        loggers("wandb_offline", "+logger.wandb.nope=1")["wandb"].start(run(tmp_path))
    with pytest.raises(
        ConfigError, match=r"but TensorBoardLogger cannot: .*unexpected keyword argument 'nope'"
    ):
        loggers("tensorboard", "+logger.tensorboard.nope=1")["tensorboard"].start(run(tmp_path))
    assert not list(tmp_path.glob("loggers/*"))


def test_mlflow_run_can_be_read_back(tmp_path, picture, loggers):
    from mlflow.tracking import MlflowClient

    logger = loggers("mlflow", "+logger.mlflow.tags.a=b")["mlflow"]
    write(logger, tmp_path, [record(0), record(1), record(2)], finish=False)
    logger = loggers("mlflow")["mlflow"]
    write(logger, tmp_path, [record(2), record(3)], resumed=1, finish=False)
    logger.picture("convergence", picture)
    logger.finish(SUMMARY)
    logger.close()
    client = MlflowClient(f"sqlite:///{loggers.root}/logs/mlflow.db")
    (found,) = client.search_runs([client.get_experiment_by_name("sweep").experiment_id])
    assert (found.info.status, found.info.run_name, found.data.tags["a"]) == ("FINISHED", "digits-fed2", "b")
    history = client.get_metric_history(found.info.run_id, "global/acc")
    assert [(point.step, point.value) for point in history] == [(0, 0.0), (1, 0.1), (2, 0.2), (3, 0.3)]
    assert found.data.metrics["to_target/0.3/rounds"] == 3
    assert found.data.params == {"seed": "3", "data/name": "digits"}
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["picture.png"]

    logger = loggers("mlflow")["mlflow"]
    (tmp_path / "failing").mkdir()
    write(logger, tmp_path / "failing", [record(0)], finish=False)
    logger.close(failed=True)
    statuses = [one.info.status for one in client.search_runs([found.info.experiment_id])]
    assert sorted(statuses) == ["FAILED", "FINISHED"]


def test_comet_archive_can_be_read_back(tmp_path, picture, loggers):
    keys = []
    for rounds, resumed, failed in [((0, 1, 2), None, True), ((2, 3), 1, False)]:
        logger = loggers("comet_offline", "logger.comet.tags=[mine]")["comet"]
        write(logger, tmp_path, [record(i) for i in rounds], resumed, finish=False)
        logger.picture("convergence", picture)
        if not failed:
            logger.finish(SUMMARY)
        logger.close(failed)
        keys.append(logger.logger.version)
    first, second = (
        archived(path) for path in sorted(tmp_path.glob("*.zip"), key=lambda path: path.stat().st_mtime_ns)
    )
    assert first["metrics"]["global/acc"] == [(0, 0.0), (1, 0.1), (2, 0.2)]
    assert second["metrics"]["global/acc"] == [(3, 0.3)]
    assert second["metrics"]["final/global/acc"] == [(3, 0.4)]
    assert first["params"] == {"seed": 3, "data|name": "digits"}
    assert first["images"] == ["convergence"]
    assert (set(first["tags"]), set(second["tags"])) == ({"failed", "mine"}, {"mine"})
    assert first["offline_id"] == second["offline_id"] == keys[0]


def archived(path):
    """What an offline experiment of Comet has in its archive."""
    with zipfile.ZipFile(path) as archive:
        messages = [json.loads(line) for line in archive.read("messages.json").splitlines()]
        experiment = json.loads(archive.read("experiment.json"))
    metrics = {}
    for message in messages:
        if metric := message["payload"].get("metric"):
            metrics.setdefault(metric["metricName"], []).append((metric["step"], metric["metricValue"]))
    params = [
        one for one in (m["payload"].get("param") for m in messages) if one and one["source"] == "manual"
    ]
    additional = [message["payload"].get("additional_params", {}) for message in messages]
    return experiment | {
        "metrics": metrics,
        "params": {param["paramName"]: param["paramValue"] for param in params},
        "images": [found["figName"] for found in additional if "figName" in found],
    }
