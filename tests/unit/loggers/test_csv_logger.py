"""metrics.csv and clients.csv: what was logged can be read back, also after an interruption."""

import gc
import os
import tracemalloc
from dataclasses import replace

from entries import record, rows, run, write
from hypothesis import given
from hypothesis import strategies as st

from fedfeat.loggers import csv_logger
from fedfeat.loggers.csv_logger import CLIENT_COLUMNS, CsvLogger
from fedfeat.runs.metrics_table import read_metrics
from fedfeat.runs.tables import check_tables, repair_tables, repaired_rounds


def test_csv_holds_evaluated_rounds_and_their_clients(tmp_path):
    write(CsvLogger(), tmp_path, [record(0), record(1, evaluated=False), record(2)])
    found = rows(tmp_path / "metrics.csv")
    assert list(found[0]) == ["round", "cohort_size", "global/acc", "train/loss"]
    assert [(row["round"], row["cohort_size"], row["global/acc"]) for row in found] == [
        ("0", "3", "0.0"),
        ("2", "3", "0.2"),
    ]
    clients = rows(tmp_path / "clients.csv")
    assert tuple(clients[0]) == CLIENT_COLUMNS
    assert CLIENT_COLUMNS[:3] == ("round", "client_id", "num_examples")
    assert [(row["round"], row["client_id"]) for row in clients] == [
        ("0", "0"),
        ("0", "1"),
        ("2", "0"),
        ("2", "1"),
    ]
    assert clients[3]["personal_acc"] == ""
    assert float(clients[3]["train_loss"]) == 1 / 3


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=5))
def test_csv_keeps_every_float(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("floats")
    write(CsvLogger(), path, [record(i, x=value) for i, value in enumerate(values)])
    assert read_metrics(path / "metrics.csv")["x"].tolist() == values


def test_a_new_metric_adds_a_column_to_the_rows_before(tmp_path):
    logger = CsvLogger()
    write(logger, tmp_path, [record(0), record(1, **{"personal/acc_mean": 0.5})], finish=False)
    logger.log(record(2))
    found = rows(tmp_path / "metrics.csv")  # readable while the run goes on
    assert [row["personal/acc_mean"] for row in found] == ["", "0.5", ""]
    assert [row["global/acc"] for row in found] == ["0.0", "0.1", "0.2"]
    logger.finish({})
    logger.close()


def test_resume_drops_later_rounds_and_a_torn_line(tmp_path, caplog):
    write(CsvLogger(), tmp_path, [record(0), record(1), record(2), record(3)])
    for name in ("metrics.csv", "clients.csv"):
        with open(tmp_path / name, "a") as file:
            file.write("1,")
    write(CsvLogger(), tmp_path, [record(2), record(3)], resumed=1)
    assert [row["round"] for row in rows(tmp_path / "metrics.csv")] == ["0", "1", "2", "3"]
    assert [row["round"] for row in rows(tmp_path / "clients.csv")] == list("00112233")
    assert "dropped 1 torn line" in caplog.text


def test_resume_gives_the_same_bytes_as_an_unbroken_run(tmp_path):
    entries = [record(0), record(1, **{"personal/acc_mean": 0.5}), record(2), record(3)]
    write(CsvLogger(), tmp_path / "a", entries)
    write(CsvLogger(), tmp_path / "b", entries[:3])
    write(CsvLogger(), tmp_path / "b", entries[2:], resumed=1)
    for name in ("metrics.csv", "clients.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_line_torn_at_any_byte_costs_that_line_only(tmp_path):
    write(CsvLogger(), tmp_path, [record(0), record(1), record(2)])
    path = tmp_path / "metrics.csv"
    whole = path.read_bytes()
    last = whole.rindex(b"\n", 0, len(whole) - 1) + 1
    for cut in range(last, len(whole)):
        path.write_bytes(whole[:cut])
        write(CsvLogger(), tmp_path, [record(2)], resumed=2 if cut % 2 else 1)
        assert path.read_bytes() == whole


def test_a_line_with_another_one_behind_it_is_torn(tmp_path, caplog):
    """It was cut off, and something went on in the same line."""
    write(CsvLogger(), tmp_path, [record(0), record(1)])
    whole = (tmp_path / "metrics.csv").read_text()
    (tmp_path / "metrics.csv").write_text(f"{whole}2,3,0.{whole.splitlines()[-1]}\n")
    write(CsvLogger(), tmp_path, [record(2)], resumed=2)
    assert [row["round"] for row in rows(tmp_path / "metrics.csv")] == ["0", "1", "2"]
    assert "dropped 1 torn line" in caplog.text


def test_who_only_reads_a_table_says_nothing_of_a_torn_line(tmp_path, caplog):
    """A resume reads the table more than once before it writes it anew, and the line is dropped then."""
    write(CsvLogger(), tmp_path, [record(0), record(1)])
    with open(tmp_path / "metrics.csv", "a") as file:
        file.write("2,")
    check_tables(tmp_path, 1, [0, 1], {"metrics.csv": 2})
    assert repair_tables(tmp_path, 1, [0, 1], {}, {"metrics.csv": 2}) == {}
    assert repaired_rounds(tmp_path) == []
    assert not caplog.records
    write(CsvLogger(), tmp_path, [record(2)], resumed=1)
    assert [one.getMessage().partition(": ")[2] for one in caplog.records] == [
        "dropped 1 torn line(s), left by an interrupted run."
    ]


def test_a_new_run_starts_new_files(tmp_path):
    write(CsvLogger(), tmp_path, [record(0), record(1)])
    write(CsvLogger(), tmp_path, [record(0)])
    assert [row["round"] for row in rows(tmp_path / "metrics.csv")] == ["0"]


def test_csv_memory_does_not_grow_with_the_rounds(tmp_path):
    logger = CsvLogger()
    logger.start(run(tmp_path))
    logger.log(record(0, num_clients=500))
    tracemalloc.start(10)
    for round_idx in range(1, 21):
        logger.log(record(round_idx, num_clients=500))
    # Of the logger alone: threads that other tests left behind allocate too.
    mine = tracemalloc.Filter(True, csv_logger.__file__, all_frames=True)
    gc.collect()
    kept = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([mine]).traces)
    tracemalloc.stop()
    logger.finish({})
    logger.close()
    written = (tmp_path / "clients.csv").stat().st_size
    assert written > 400_000
    # The text of the rows alone would be all of it, and the rows several times as much.
    assert kept < written / 2


def watching(round_idx, evaluated=True):
    values = (0.1 * round_idx, 1 / 3)
    return replace(record(round_idx, evaluated), observed={"fusion/lambda": values, "other": (1.0,)})


def test_what_a_method_watches_has_a_table_of_its_own(tmp_path):
    write(CsvLogger(), tmp_path, [watching(0), watching(1, evaluated=False), watching(2)])
    found = rows(tmp_path / "observed" / "fusion_lambda.csv")
    assert [(row["round"], float(row["0"]), float(row["1"])) for row in found] == [
        ("0", 0.0, 1 / 3),
        ("2", 0.2, 1 / 3),
    ]
    assert [row["0"] for row in rows(tmp_path / "observed" / "other.csv")] == ["1.0", "1.0"]
    assert "fusion/lambda" not in rows(tmp_path / "metrics.csv")[0]


def test_all_tables_are_on_the_disk_before_a_checkpoint(tmp_path, monkeypatch):
    logger = CsvLogger()
    write(logger, tmp_path, [watching(0), watching(1)], finish=False)
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    logger.secure()
    names = ("metrics.csv", "clients.csv", "observed/fusion_lambda.csv", "observed/other.csv")
    assert {(tmp_path / name).stat().st_ino for name in names} <= {*synced}
    logger.close()


def test_resume_drops_later_rounds_of_these_tables_too(tmp_path):
    entries = [watching(i) for i in range(4)]
    write(CsvLogger(), tmp_path / "a", entries)
    write(CsvLogger(), tmp_path / "b", entries[:3])
    write(CsvLogger(), tmp_path / "b", entries[2:], resumed=1)
    for name in ("fusion_lambda.csv", "other.csv"):
        found = tmp_path / "b" / "observed" / name
        assert found.read_bytes() == (tmp_path / "a" / "observed" / name).read_bytes()
        assert [row["round"] for row in rows(found)] == ["0", "1", "2", "3"]


def test_methods_that_watch_nothing_leave_no_tables(tmp_path):
    write(CsvLogger(), tmp_path, [record(0)])
    assert not (tmp_path / "observed").exists()
