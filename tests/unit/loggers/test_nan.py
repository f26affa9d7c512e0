"""Numbers that are not finite, in whatever is written of a run."""

import json
import math

import pandas as pd
from entries import SUMMARY, record, write
from wandb_file import finished_wandb, items

from fedfeat.loggers.csv_logger import CsvLogger
from fedfeat.runs.metrics_table import read_metrics

NAN = math.nan


def test_csv_has_nan_apart_from_what_does_not_exist(tmp_path):
    write(CsvLogger(), tmp_path, [record(0), record(1, **{"global/loss": NAN})])
    lines = (tmp_path / "metrics.csv").read_text().splitlines()
    assert [line.rsplit(",", 1)[1] for line in lines] == ["global/loss", "", "nan"]
    for table in (read_metrics(tmp_path / "metrics.csv"), pd.read_csv(tmp_path / "metrics.csv")):
        assert table["global/loss"].isna().all()
        assert table["global/acc"].tolist() == [0.0, 0.1]


def test_wandb_has_nan_in_history_and_summary(tmp_path, loggers, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = loggers("wandb_offline")["wandb"]
    write(logger, tmp_path, [record(0, **{"global/loss": NAN})], finish=False)
    logger.finish(SUMMARY | {"final": {"global/loss": NAN, "global/acc": 0.5}})
    logger.close()
    summary = {}
    rows = []
    for entry in finished_wandb(tmp_path)[0]:
        summary.update(items(entry.summary.update))
        rows += [items(entry.history.item)] if entry.HasField("history") else []
    assert math.isnan(rows[0]["global/loss"])
    assert math.isnan(float(summary["global/loss"]))
    assert summary["global/acc"] == 0.5


def test_python_and_pandas_read_it_in_a_summary(tmp_path):
    path = tmp_path / "summary.json"
    path.write_text(json.dumps({"final": {"global/loss": NAN}}))
    assert math.isnan(json.loads(path.read_text())["final"]["global/loss"])
    assert pd.read_json(path).loc["global/loss"].isna().all()
