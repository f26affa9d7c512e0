"""The report: grouping over seeds, labels, mean ± std, published numbers."""

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fedfeat.commands.report import aggregate, main, table
from fedfeat.runs.finished import Run, find_runs, group_runs, measured_numbers


def make_run(path, seed=0, algorithm="fedavg", acc=0.5, reached=3, published=None, finished=True, **config):
    path.mkdir(parents=True)
    settings = {
        "seed": seed,
        "name": f"run-{seed}",
        "partition": {"seed": seed, "alpha": 0.5},
        "algorithm": {"name": algorithm, "client": {"_target_": f"x.{algorithm}"}},
        "paths": {"run": str(path)},
        "cache": f"{path}/cache",
        **config,
    }
    if published:
        settings["published"] = published
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    header = "round,cohort_size,global/acc,comm/total_bytes,compute/examples,time/total_s\n"
    lines = [f"{i},2,{acc * i / 4},{i * 1000},{i * 20},{i * 0.5}\n" for i in range(5)]
    (path / "metrics.csv").write_text(header + "".join(lines))
    cost = (
        {"rounds": reached, "bytes": reached * 1000, "examples": 20 * reached, "seconds": 1.0}
        if reached
        else None
    )
    summary = {"seed": seed, "algorithm": algorithm, "final": {"global/acc": acc}, "to_target": {"0.3": cost}}
    if finished:
        (path / "summary.json").write_text(json.dumps(summary))
    return path


def labels(folder):
    return {
        label: [run.summary["seed"] for run in group]
        for label, group in group_runs(find_runs([folder])[0]).items()
    }


def test_runs_that_differ_only_in_the_seed_are_one_setting(tmp_path):
    for seed in (2, 0, 1):
        make_run(tmp_path / f"a{seed}", seed)
        make_run(tmp_path / f"b{seed}", seed, "fedprox")
    assert labels(tmp_path) == {"fedavg": [0, 1, 2], "fedprox": [0, 1, 2]}


def test_a_fixed_inner_seed_is_no_part_of_the_seed(tmp_path):
    """partition.seed is 1 in both runs, hence one setting, although the second run's seed happens to be 1."""
    for seed in (0, 1):
        make_run(tmp_path / str(seed), seed, partition={"seed": 1})
    assert labels(tmp_path) == {"fedavg": [0, 1]}


def test_two_inner_seeds_are_two_settings(tmp_path):
    make_run(tmp_path / "a", 0, partition={"seed": 7})
    make_run(tmp_path / "b", 0, partition={"seed": 8})
    assert labels(tmp_path) == {"partition.seed=7": [0], "partition.seed=8": [0]}


def test_aggregate_is_mean_and_sample_std_with_published(tmp_path):
    """Accuracies 0.4, 0.5, 0.9: mean 0.6, deviation sqrt((0.04 + 0.01 + 0.09) / 2); two runs reach 0.3."""
    for seed, (acc, reached) in enumerate([(0.4, 2), (0.5, None), (0.9, 4)]):
        make_run(tmp_path / str(seed), seed, acc=acc, reached=reached, published={"global/acc": 0.65})
    groups = group_runs(find_runs([tmp_path])[0])
    rows = aggregate(groups)
    assert rows.loc["fedavg", "global/acc"].tolist() == pytest.approx([0.6, 0.07**0.5, 3, 0.65, -0.05])
    assert rows.loc["fedavg", "to_target/0.3/rounds"].tolist()[:3] == pytest.approx([3, 2**0.5, 2])
    lines = table(groups, rows, "global/acc").loc[0]
    assert lines["global/acc"] == "0.6 ± 0.2646 (published 0.65)"
    assert lines["to_target/0.3/rounds"] == "3 ± 1.414 (2/3 runs)"


def test_report_writes_tables_and_curves(tmp_path, capsys):
    for seed in (0, 1):
        make_run(tmp_path / "in" / f"a{seed}", seed, acc=0.5 + 0.1 * seed, published={"global/acc": 0.5})
        make_run(tmp_path / "in" / f"b{seed}", seed, "fedprox", acc=0.7, reached=None if seed else 2)
    make_run(tmp_path / "in" / "c", 5, finished=False)
    out = tmp_path / "out"
    main([str(tmp_path / "in"), "--out", str(out)])
    assert {path.name for path in out.iterdir()} == {
        "report.csv",
        "report.md",
        "curves_round.png",
        "curves_bytes.png",
        "curves_examples.png",
    }
    with open(out / "report.csv", newline="") as file:
        rows = {(row["setting"], row["quantity"]): row for row in csv.DictReader(file)}
    row = rows["fedavg", "global/acc"]
    assert float(row["mean"]) == pytest.approx(0.55)
    assert float(row["std"]) == pytest.approx(0.1 / 2**0.5)
    assert float(row["difference"]) == pytest.approx(0.05)
    assert rows["fedprox", "global/acc"]["published"] == ""
    text = (out / "report.md").read_text()
    assert "| fedavg | 2 | 0.55 ± 0.07071 (published 0.5) | 3 ± 0 | 3 kB ± 0 B |" in text
    assert "| fedprox | 2 | 0.7 ± 0 | 2 (1/2 runs) | 2 kB (1/2 runs) |" in text
    assert "![global/acc over bytes](curves_bytes.png)" in text
    captured = capsys.readouterr()
    assert "c: skipped, not finished (summary.json is missing)." in captured.err
    assert "│ fedavg  │" in captured.out


def test_the_printed_table_cuts_nothing(tmp_path, capsys, monkeypatch):
    """The two settings need three keys, whose label is longer than the terminal is wide."""
    monkeypatch.setenv("COLUMNS", "80")
    for i, numbers in enumerate([(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)]):
        keys = (
            "the_first_of_three_long_names",
            "the_second_of_three_long_names",
            "the_third_of_three_long_names",
        )
        path = make_run(tmp_path / str(i), long=dict(zip(keys, numbers, strict=True)))
        summary = json.loads((path / "summary.json").read_text())
        summary["final"] |= {"global/client_acc_mean": 0.5, "global/client_acc_worst": 0.25}
        (path / "summary.json").write_text(json.dumps(summary))
    main([str(tmp_path), "--out", str(tmp_path / "out")])
    shown = capsys.readouterr().out
    assert "…" not in shown
    column = "".join(line.split("│")[1].strip() for line in shown.splitlines() if line.startswith("│"))
    assert "long.the_second_of_three_long_names=2" in column.replace(" ", "")
    assert all(line.endswith("│") for line in shown.splitlines() if line.startswith("│"))


def aggregated(rows):
    """Rows of (setting, quantity, mean, num_runs, published) as `aggregate` gives them."""
    columns = ["setting", "quantity", "mean", "num_runs", "published"]
    found = pd.DataFrame(rows, columns=columns).set_index(columns[:2])
    return found.assign(std=np.nan, difference=found["mean"] - found["published"])


def test_the_table_shows_the_highest_target_that_most_settings_reach():
    reached = {"a": ["0.5", "0.8", "0.9"], "b": ["0.5", "0.8"]}
    rows = [("a", "global/acc", 0.9, 1, np.nan)]
    rows += [
        (label, f"to_target/{target}/{cost}", 1, 1, np.nan)
        for label, targets in reached.items()
        for target in targets
        for cost in ("rounds", "bytes", "seconds")
    ]
    lines = table({"a": [None], "b": [None]}, aggregated(rows), "global/acc")
    assert list(lines) == ["setting", "runs", "global/acc", "to_target/0.8/rounds", "to_target/0.8/bytes"]
    assert lines.to_numpy().tolist() == [["a", "1", "0.9", "1", "1 B"], ["b", "1", "-", "1", "1 B"]]


def test_a_published_target_that_no_run_reached_stays_in_the_report(tmp_path):
    """Rounds to 0.3 are published as 5: one setting needs 3 and 4, mean 3.5; the other never gets there."""
    published = {"to_target/0.3/rounds": {"by": ["algorithm.name"], "a": 5, "b": 7}}
    for seed in (0, 1):
        make_run(tmp_path / "in" / f"a{seed}", seed, "a", reached=3 + seed, published=published)
        make_run(tmp_path / "in" / f"b{seed}", seed, "b", reached=None, published=published)
    groups = group_runs(find_runs([tmp_path / "in"])[0])
    rows = aggregate(groups)
    assert rows.loc["a", "to_target/0.3/rounds"].tolist() == [3.5, 0.5**0.5, 2, 5, -1.5]
    missed = rows.loc["b", "to_target/0.3/rounds"]
    assert (missed.num_runs, missed.published) == (0, 7)
    assert missed[["mean", "std", "difference"]].isna().all()
    assert ("b", "to_target/0.3/bytes") not in rows.index
    main([str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "3.5 ± 0.7071 (published 5)" in text
    assert "| - (published 7) (0/2 runs) |" in text
    assert "b,to_target/0.3/rounds,,,0,7," in (tmp_path / "out" / "report.csv").read_text()


def test_no_target_is_shown_that_a_paper_alone_reached():
    rows = [("a", "to_target/0.5/rounds", 3, 1, np.nan), ("a", "to_target/0.9/rounds", np.nan, 0, 40)]
    lines = table({"a": [None]}, aggregated(rows), "global/acc")
    assert list(lines) == ["setting", "runs", "to_target/0.9/rounds", "to_target/0.5/rounds"]
    assert lines.to_numpy().tolist() == [["a", "1", "- (published 40) (0/1 runs)", "3"]]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0.0, 9.0, *range(10)], 4.5),
        (range(9), None),
        ([np.nan, *range(9)], None),
        ([np.nan, *range(10)], 4.5),
        (None, None),
    ],
)
def test_accuracy_at_convergence_is_the_mean_of_the_last_ten_rounds(column, expected):
    metrics = pd.DataFrame({} if column is None else {"local/acc": np.array(column, dtype=np.float64)})
    summary = {"final": {"local/acc": 0.5}, "to_target": {"0.9": None, "0.3": {"rounds": 4}}}
    run = Run(Path("r"), summary, {}, {"last10/local/acc": 0.7, "local/acc": 0.7}, metrics)
    measured = measured_numbers(run)
    assert measured.pop("last10/local/acc", None) == expected
    assert measured == {"local/acc": 0.5, "to_target/0.9": None, "to_target/0.3/rounds": 4}


def test_x_chooses_the_curves(tmp_path):
    make_run(tmp_path / "a")
    main([str(tmp_path / "a"), "--x", "seconds", "--out", str(tmp_path / "out")])
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["curves_seconds.png"]


def test_repeated_and_unreadable_runs_are_named_and_skipped(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    (make_run(tmp_path / "c", 1) / "summary.json").write_text("[1")
    (make_run(tmp_path / "d", 2) / "summary.json").write_text("{}")
    (tmp_path / "e").mkdir()
    runs, skipped = find_runs([tmp_path, tmp_path / "a", tmp_path / "e"])
    assert [run.path.name for run in runs] == ["a"]
    assert skipped[0].endswith(f"b: skipped, same setting and seed as {tmp_path / 'a'}.")
    assert "c: skipped, unreadable (" in skipped[1]
    assert skipped[2].endswith("d: skipped, unreadable (summary.json must hold seed and final).")
    assert skipped[3].endswith("e: skipped, no run in it.")
    assert len(skipped) == 4


def test_no_run_and_an_unknown_metric_are_one_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--out", str(tmp_path / "out")])
    assert "DIR must hold at least one finished run, but there is none in" in capsys.readouterr().err
    make_run(tmp_path / "a")
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), "--metric", "nope", "--out", str(tmp_path / "out")])
    assert "nope over round must be columns that the runs have" in capsys.readouterr().err
