"""The report: grouping over seeds, labels, mean ± std, published numbers."""

import csv
import json
import re

import numpy as np
import pandas as pd
import pytest
import yaml
from report_runs import make_run

from fedfeat.commands.report import main
from fedfeat.commands.report_figures import along
from fedfeat.commands.report_gathered import gather
from fedfeat.commands.report_rows import aggregate, measure, table, write_number
from fedfeat.errors import DIVERGED
from fedfeat.runs.finished import find_runs
from fedfeat.runs.labels import group_runs, name_settings
from fedfeat.runs.quantities import Metric

ONE_FIGURE = ("--x", "algorithm")
"""Drawn quickly, for tests of something else."""


METRIC = [Metric.parse("global/acc")]


def read(folder):
    """Groups, as a report has them, and their rows."""
    settings = group_runs(find_runs([folder])[0])
    naming = name_settings(settings)
    groups = {naming.label(setting): setting.runs for setting in settings}
    return groups, aggregate(groups, measure(groups, METRIC))


def test_aggregate_is_mean_and_sample_std_with_published(tmp_path):
    """Accuracies 0.4, 0.5, 0.9: mean 0.6, deviation sqrt((0.04 + 0.01 + 0.09) / 2); two runs reach 0.3."""
    for seed, (acc, reached) in enumerate([(0.4, 2), (0.5, None), (0.9, 4)]):
        make_run(tmp_path / str(seed), seed, acc=acc, reached=reached, published={"global/acc": 0.65})
    groups, rows = read(tmp_path)
    assert rows.loc["fedavg", "global/acc"].tolist() == pytest.approx([0.6, 0.07**0.5, 3, 0.65, -0.05])
    assert rows.loc["fedavg", "to_target/0.3/rounds"].tolist()[:3] == pytest.approx([3, 2**0.5, 2])
    lines = table(groups, rows, METRIC).loc[0]
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
        "report.tex",
        *(
            f"curves_{axis}.{form}"
            for axis in ("round", "bytes", "examples")
            for form in ("png", "pdf", "svg")
        ),
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


def test_what_a_run_ended_by_is_said_where_it_is_skipped(tmp_path):
    place = tmp_path / "lost"
    place.mkdir()
    (place / "metrics.csv").write_text("round,global/acc\n0,0.1\n")
    (place / "failure.txt").write_text("Client 1 failed in round 2 (seed 3): its update is not finite.\n")
    runs, skipped = find_runs([tmp_path])
    assert runs == []
    assert skipped == [
        f"{place}: skipped, ended by: Client 1 failed in round 2 (seed 3): its update is not finite."
    ]


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
    main([str(tmp_path), *ONE_FIGURE, "--out", str(tmp_path / "out")])
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
    lines = table({"a": [None], "b": [None]}, aggregated(rows), METRIC)
    assert list(lines) == ["setting", "runs", "global/acc", "to_target/0.8/rounds", "to_target/0.8/bytes"]
    assert lines.to_numpy().tolist() == [["a", "1", "0.9", "1", "1 B"], ["b", "1", "-", "1", "1 B"]]


def test_a_published_target_that_no_run_reached_stays_in_the_report(tmp_path):
    """Rounds to 0.3 are published as 5: one setting needs 3 and 4, mean 3.5; the other never gets there."""
    published = {"to_target/0.3/rounds": {"by": ["algorithm.name"], "a": 5, "b": 7}}
    for seed in (0, 1):
        make_run(tmp_path / "in" / f"a{seed}", seed, "a", reached=3 + seed, published=published)
        make_run(tmp_path / "in" / f"b{seed}", seed, "b", reached=None, published=published)
    _, rows = read(tmp_path / "in")
    assert rows.loc["a", "to_target/0.3/rounds"].tolist() == [3.5, 0.5**0.5, 2, 5, -1.5]
    missed = rows.loc["b", "to_target/0.3/rounds"]
    assert (missed.num_runs, missed.published) == (0, 7)
    assert missed[["mean", "std", "difference"]].isna().all()
    assert ("b", "to_target/0.3/bytes") not in rows.index
    main([str(tmp_path / "in"), *ONE_FIGURE, "--out", str(tmp_path / "out")])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "3.5 ± 0.7071 (published 5)" in text
    assert "| - (published 7) (0/2 runs) |" in text
    assert "b,b,to_target/0.3/rounds,,,0,7," in (tmp_path / "out" / "report.csv").read_text()


def test_no_target_is_shown_that_a_paper_alone_reached():
    rows = [("a", "to_target/0.5/rounds", 3, 1, np.nan), ("a", "to_target/0.9/rounds", np.nan, 0, 40)]
    lines = table({"a": [None]}, aggregated(rows), METRIC)
    assert list(lines) == ["setting", "runs", "to_target/0.9/rounds", "to_target/0.5/rounds"]
    assert lines.to_numpy().tolist() == [["a", "1", "- (published 40) (0/1 runs)", "3"]]


def test_runs_from_other_weights_are_another_setting(tmp_path):
    """The path is the same: the file was written anew. Where it has been moved alone, it is one setting."""
    for name, seed, folder, digest in (("a", 0, "x", "1"), ("b", 1, "x", "2"), ("c", 2, "y", "1")):
        place = make_run(tmp_path / "in" / name, seed, model={"weights": f"/{folder}/w.safetensors"})
        (place / "weights.json").write_text(json.dumps({"model.weights": digest * 64}))
    main([str(tmp_path / "in"), "--out", str(tmp_path / "out")])
    with open(tmp_path / "out" / "report.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "global/acc"]
    assert {row["setting"]: row["num_runs"] for row in rows} == {
        "fedavg, model.weights=w.safetensors 1111111": "2",
        "fedavg, model.weights=w.safetensors 2222222": "1",
    }


@pytest.mark.parametrize("metrics", [["global/acc=comm/total_bytes"], ["m=global/acc", "m=comm/total_bytes"]])
def test_a_name_of_ones_own_is_nothing_elses(tmp_path, capsys, metrics):
    make_run(tmp_path / "a")
    asked = [word for metric in metrics for word in ("--metric", metric)]
    said = refused([str(tmp_path / "a"), *asked, "--out", str(tmp_path / "out")], capsys)
    assert said.startswith("--metric must give a name that no quantity and no other metric has, but it is ")


def test_metrics_whose_names_are_one_file_have_two(tmp_path):
    make_run(tmp_path / "a")
    asked = [word for name in ("a b", "a_b", "c") for word in ("--metric", f"{name}=global/acc")]
    main([str(tmp_path / "a"), *asked, "--x", "round", "--out", str(tmp_path / "out")])
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.png")) == [
        "curves_round_a_b", "curves_round_a_b_1", "curves_round_c",
    ]  # fmt: skip


def test_x_chooses_the_curves(tmp_path):
    make_run(tmp_path / "a")
    main([str(tmp_path / "a"), "--x", "seconds", "--out", str(tmp_path / "out")])
    assert [path.name for path in (tmp_path / "out").glob("*.png")] == ["curves_seconds.png"]


def test_repeated_and_unreadable_runs_are_named_and_skipped(tmp_path):
    make_run(tmp_path / "a")
    make_run(tmp_path / "b")
    (make_run(tmp_path / "c", 1) / "summary.json").write_text("[1")
    (make_run(tmp_path / "d", 2) / "summary.json").write_text("{}")
    (make_run(tmp_path / "d2", 3) / "metrics.csv").write_bytes(b"\xff\xfe")
    (make_run(tmp_path / "d5", 5) / "metrics.csv").write_text("global/acc\n0.5\n")
    for name, config in (("d3", ""), ("d4", "seed: 0")):
        lost = make_run(tmp_path / name, 4, finished=False)
        (lost / "config.yaml").write_text(config)
        (lost / "failure.txt").write_text(f"Client 3 failed in round 5: its update {DIVERGED}.\n")
    (tmp_path / "e").mkdir()
    runs, skipped = find_runs([tmp_path, tmp_path / "a", tmp_path / "e"])
    assert [run.path.name for run in runs] == ["a"]
    assert "c: skipped, unreadable (" in skipped[0]
    assert skipped[1].endswith("d: skipped, unreadable (summary.json must hold seed and final).")
    assert "d2: skipped, unreadable (" in skipped[2]
    assert "d3: skipped, unreadable (" in skipped[3]
    assert "d4: skipped, unreadable (" in skipped[4]
    assert skipped[5].endswith("d5: skipped, unreadable (metrics.csv must have the column round).")
    assert skipped[6].endswith("e: skipped, no run in it.")
    assert skipped[7].endswith(f"b: skipped, same setting and seed as {tmp_path / 'a'}.")
    assert len(skipped) == 8


def test_what_the_directory_says_beside_the_configuration(tmp_path):
    """Hydra's record, the words of the command line, the data; an older directory has the data of the others."""
    for name, seed in (("a", 0), ("b", 1)):
        make_run(tmp_path / name, seed, data={"name": "pictures", "root": "/photos/cats"})
    (tmp_path / "a" / ".hydra").mkdir()
    record = {"hydra": {"runtime": {"choices": {"data": "image_folder", "debug": None}}}}
    (tmp_path / "a" / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(record))
    words = ["+x.y=1", "partition.alpha=0.5", "algorithm=fedavg"]
    (tmp_path / "a" / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    (tmp_path / "a" / "data.json").write_text(
        json.dumps({"input_shape": [1, 8, 8], "classes": ["cat"], "mean": 0})
    )
    first, second = find_runs([tmp_path])[0]
    assert first.choices == {"data": "image_folder"}
    assert first.written == {"x.y", "partition.alpha", "algorithm"}
    assert first.data == '[[1, 8, 8], ["cat"]]'
    assert first.data_root == "/photos/cats"
    assert (second.choices, second.written, second.data) == ({}, frozenset(), first.data)


def run_on(path, seed, root, digest):
    make_run(path, seed, data={"name": "pictures"}, acc=seed / 10)
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["data"]["root"] = root
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    if digest:
        facts = {"input_shape": [1], "classes": ["cat"], "fingerprint": [digest, "s"]}
        (path / "data.json").write_text(json.dumps(facts))


@pytest.mark.parametrize(
    ("runs", "together"),
    [
        # Data that were moved; a second run of the seed is skipped.
        (["/a 0 x", "/a 1 x", "/b 2 x"], ["012"]),
        (["/a 0 x", "/b 0 x", "/b 1 x"], ["02"]),
        # Another folder with classes of the same names.
        (["/a 0 x", "/a 1 x", "/b 0 z", "/b 1 z"], ["01", "23"]),
        (["/a 0 x", "/a 1 x", "/b 2 z"], ["01", "2"]),
        # Examples that follow the seed, moved.
        (["/a 0 x", "/a 1 y", "/b 2 u"], ["012"]),
        (["/a 0 x", "/a 1 y", "/b 0 x", "/b 2 u"], ["013"]),
        (["/a 0 x", "/a 1 y", "/b 1 z", "/b 2 z"], ["01", "23"]),
        # Files that were replaced where they lay.
        (["data 0 x", "data 0 z", "data 1 x", "data 1 z"], ["02", "13"]),
        # What does not say joins one of them, and no two by itself.
        (["/c 2 ", "/a 0 x", "/b 0 z"], ["10", "2"]),
        (["/a 0 ", "/b 1 "], ["01"]),
    ],
)
def test_runs_of_one_setting_are_told_apart_by_their_examples(runs, together, tmp_path):
    for number, line in enumerate(runs):
        root, seed, digest = line.split(" ")
        run_on(tmp_path / str(number), int(seed), root, digest)
    settings = group_runs(find_runs([tmp_path])[0])
    assert sorted("".join(run.path.name for run in setting.runs) for setting in settings) == sorted(together)
    names = {setting.words["data"] for setting in settings}
    roots = {run.data_root for setting in settings for run in setting.runs}
    if len(settings) > 1 and len(roots) > 1:
        assert len(names) == len(settings)
        assert all(name.startswith("pictures (") for name in names)


def refused(arguments, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    command, _, sentence = line.partition(": ")
    assert command == "fedfeat-report"
    return sentence


def test_no_run_and_names_of_nothing_are_one_sentence(tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert "DIR must hold at least one finished run, but there is none in" in capsys_last(
        tmp_path, out, capsys
    )
    make_run(tmp_path / "in" / "a", structure={"depth": 2})
    start = [str(tmp_path / "in"), *out]
    assert refused([*start, "--metric", "global/ac"], capsys) == (
        "--metric must name something that the runs have, but it is 'global/ac' (did you mean global/acc?)."
    )
    assert refused([*start, "--x", "structure.dept"], capsys) == (
        "--x must be round, bytes, examples, seconds, a key or a group of the runs' configurations, but it is "
        "'structure.dept' (did you mean structure.depth?)."
    )
    assert "'depth' (did you mean structure.depth?)" in refused([*start, "--x", "depth"], capsys)
    assert "column of metrics.csv over round" in refused(
        [*start, "--x", "round", "--metric", "last2/global/acc"], capsys
    )
    assert (
        refused([*start, "--share-of-best", "2"], capsys)
        == "--share-of-best must lie in (0, 1], but it is 2.0."
    )
    assert not (tmp_path / "out").exists()


def capsys_last(folder, out, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([str(folder), *out])
    return capsys.readouterr().err.splitlines()[-1]


def test_a_sweep_over_a_key_and_an_arm_without_it(tmp_path, capsys):
    """Two depths of fed2 with two seeds each, and fedavg, which has no depth: one figure, one CSV column."""
    for depth in (2, 10):
        for seed in (0, 1):
            place = tmp_path / "in" / f"{depth}-{seed}"
            make_run(place, seed, "fed2", acc=0.5 + 0.1 * seed + depth / 100, structure={"depth": depth})
    make_run(tmp_path / "in" / "fedavg", 0, acc=0.4)
    out = tmp_path / "out"
    main([str(tmp_path / "in"), "--x", "structure.depth", "--share-of-best", "0.5", "--out", str(out)])
    assert {path.name for path in out.glob("over*")} == {
        f"over_structure.depth.{form}" for form in ("png", "pdf", "svg")
    }
    with open(out / "report.csv", newline="") as file:
        rows = {(row["setting"], row["quantity"]): row for row in csv.DictReader(file)}
    row = rows["fed2, structure.depth=10", "global/acc"]
    assert (row["algorithm"], row["structure.depth"], float(row["mean"])) == (
        "fed2",
        "10",
        pytest.approx(0.65),
    )
    assert rows["fedavg", "global/acc"]["structure.depth"] == ""
    assert rows["fedavg", "global/acc"]["std"] == ""
    # The curve is linear over rounds 0 to 4, so half of its end is there in round 2, after 2000 bytes and 40 examples.
    found = [rows["fedavg", f"to_own_best/0.5/{cost}"]["mean"] for cost in ("rounds", "bytes", "examples")]
    assert found == ["2", "2000", "40"]
    shown = capsys.readouterr().out
    assert "0.5 of the maximum over a run's evaluated" in " ".join(shown.split())
    order = [
        line.split("|")[1].strip()
        for line in (out / "report.md").read_text().split("## ")[0].splitlines()
        if "| fed" in line
    ]
    assert order == ["fed2, structure.depth=2", "fed2, structure.depth=10", "fedavg"]


def test_what_a_key_implies_makes_no_curves_of_its_own(tmp_path):
    """Local epochs and rounds are swept together, so that the work is the same: one curve, which names the rounds."""
    for epochs, rounds in ((1, 40), (20, 2)):
        make_run(tmp_path / str(epochs), federation={"local_epochs": epochs, "num_rounds": rounds})
        (tmp_path / str(epochs) / ".hydra").mkdir()
        words = [f"federation.local_epochs={epochs}", f"federation.num_rounds={rounds}"]
        (tmp_path / str(epochs) / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    make_run(tmp_path / "p", algorithm="fedprox", federation={"local_epochs": 1, "num_rounds": 40})
    settings = group_runs(find_runs([tmp_path])[0])
    naming = name_settings(settings)
    named = {naming.label(setting): setting for setting in settings}
    numbers = measure({label: setting.runs for label, setting in named.items()}, METRIC)
    found = along("federation.local_epochs", named, naming, METRIC[0], numbers)
    assert {name: sorted(curve) for name, curve in found.curves.items()} == {
        "fedavg (federation.num_rounds 40, 2)": [1, 20],
        "fedprox (federation.num_rounds=40)": [1],
    }


def test_a_metric_per_arm(tmp_path, capsys):
    """The first that an arm has, under a name; over the algorithm the bars say which is which."""
    make_run(tmp_path / "in" / "a", acc=0.4)
    place = make_run(tmp_path / "in" / "b", algorithm="fedhenn", acc=0.3)
    summary = json.loads((place / "summary.json").read_text())
    summary["final"]["personal/acc_mean"] = 0.8
    (place / "summary.json").write_text(json.dumps(summary))
    out = tmp_path / "out"
    main(
        [
            str(tmp_path / "in"),
            "--metric",
            "best=personal/acc_mean,global/acc",
            "--x",
            "algorithm",
            "--out",
            str(out),
        ]
    )
    assert "best: personal/acc_mean of fedhenn; global/acc of fedavg." in capsys.readouterr().out
    with open(out / "report.csv", newline="") as file:
        rows = {(row["setting"], row["quantity"]): float(row["mean"]) for row in csv.DictReader(file)}
    assert (rows["fedavg", "best"], rows["fedhenn", "best"]) == (0.4, 0.8)
    assert "global/acc at fedavg; personal/acc_mean at fedhenn" in svg_text(out / "over_algorithm.svg")


def svg_text(path):
    """Matplotlib writes a text as shapes, under a comment that holds it."""
    return " ".join(re.findall(r"<!-- (.*?) -->", path.read_text()))


def test_a_run_that_has_diverged_is_nan_in_every_table(tmp_path, capsys):
    """One of two seeds: no mean is made of the other alone."""
    make_run(tmp_path / "in" / "a", 0)
    place = make_run(tmp_path / "in" / "b", 1, acc=float("nan"), reached=None)
    assert "nan" in (place / "metrics.csv").read_text()
    out = tmp_path / "out"
    main([str(tmp_path / "in"), "--x", "round", "--out", str(out)])
    with open(out / "report.csv", newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["quantity"] == "global/acc")
    assert (row["mean"], row["std"], row["num_runs"]) == ("nan", "nan", "2")
    assert "| fedavg | 2 | nan |" in (out / "report.md").read_text()
    assert "fedavg & 2 & nan &" in (out / "report.tex").read_text()
    assert "(nan from round 0 in 1 of 2 runs)" in svg_text(out / "curves_round.svg")
    assert "nan: a run has diverged" in capsys.readouterr().out


def test_a_run_that_a_clients_divergence_has_ended_is_no_run_less(tmp_path, capsys):
    """Else its method's mean would be that of the seeds which survived."""
    for seed in (0, 1):
        make_run(tmp_path / "in" / f"a{seed}", seed)
        lost = make_run(tmp_path / "in" / f"b{seed}", seed, algorithm="fedprox", finished=seed == 0)
    (lost / "failure.txt").write_text(f"Client 3 failed in round 5: its update {DIVERGED}.\n")
    main([str(tmp_path / "in"), "--out", str(out := tmp_path / "out"), "--html"])
    table = csv.DictReader((out / "report.csv").read_text().splitlines())
    rows = {(row["setting"], row["quantity"]): row for row in table}
    for quantity in ("global/acc", "to_target/0.3/rounds"):
        assert [rows["fedprox", quantity][key] for key in ("mean", "num_runs")] == ["nan", "2"]
        assert rows["fedavg", quantity]["mean"] != "nan"
    assert "(nan from round 5 in 1 of 2 runs)" in svg_text(out / "curves_round.svg")
    shown = capsys.readouterr()
    assert "nan: a run has diverged" in shown.out
    assert "skipped" not in shown.err


def test_different_data_in_one_table_are_said_above_it(tmp_path, capsys):
    make_run(tmp_path / "in" / "a", data={"name": "digits"})
    make_run(tmp_path / "in" / "b", data={"name": "mnist"})
    main([str(tmp_path / "in"), *ONE_FIGURE, "--out", str(tmp_path / "out")])
    sentence = "Warning: these runs are on different data sets: digits, mnist."
    assert capsys.readouterr().out.startswith(sentence)
    assert (tmp_path / "out" / "report.md").read_text().startswith(f"**{sentence}**\n\n| setting |")
    assert f"% {sentence}" in (tmp_path / "out" / "report.tex").read_text()


def test_two_metrics_share_a_figure_and_three_have_one_each(tmp_path):
    make_run(tmp_path / "in" / "a")
    three = ["global/acc", "compute/examples", "last2/global/acc"]
    for metrics in (three[:2], three):
        asked = [word for metric in metrics for word in ("--metric", metric)]
        main([str(tmp_path / "in"), "--x", "algorithm", *asked, "--out", str(tmp_path / str(len(metrics)))])
    assert [path.name for path in (tmp_path / "2").glob("*.png")] == ["over_algorithm.png"]
    assert sorted(path.name for path in (tmp_path / "3").glob("*.png")) == [
        f"over_algorithm_{name}.png" for name in ("compute_examples", "global_acc", "last2_global_acc")
    ]


def test_data_of_one_name_from_folders_of_one_name_are_told_apart(tmp_path, capsys):
    for seed in (0, 1):
        for groups in (2, 4):
            for place, digest, acc in (("home", "e" * 64, 0.5), ("scratch", "f" * 64, 0.9)):
                data = {"name": "image_folder", "root": f"/{place}/me/data"}
                run = tmp_path / "in" / f"{place}{seed}{groups}"
                make_run(run, seed, "fed2", acc=acc, data=data, structure={"groups": groups})
                facts = {"input_shape": [1, 8, 8], "classes": ["a", "b"], "fingerprint": [digest, "s"]}
                (run / "data.json").write_text(json.dumps(facts))
    main([str(tmp_path / "in"), "--x", "structure.groups", "--out", str(tmp_path / "out")])
    shown = " ".join(capsys.readouterr().out.split())
    assert "different data sets: image_folder (data eeeeeee), image_folder (data fffffff)." in shown
    found = gather(find_runs([tmp_path / "in"])[0], axes=["structure.groups"])
    curves = along("structure.groups", found.settings, found.naming, found.metrics[0], found.numbers).curves
    assert sorted(point.mean for curve in curves.values() for point in curve.values()) == [0.5, 0.5, 0.9, 0.9]


def test_one_and_one_point_zero_are_one_setting(tmp_path):
    for seed, mu in enumerate((1, 1.0, 0.1)):
        make_run(tmp_path / str(seed), seed, "fedprox", optimizer={"lr": mu})
    settings = gather(find_runs([tmp_path])[0]).settings
    assert sorted(len(setting.runs) for setting in settings.values()) == [1, 2]


def test_ten_thousand_is_written_out_from_where_it_rounds_to_it():
    assert [write_number("x", value) for value in (9999.4, 9999.6, 10000.0)] == ["9999", "10,000", "10,000"]


def test_what_a_run_began_with_tells_it_apart_and_its_own_place_does_not(tmp_path):
    """Folders of campaigns are all called after their seeds; a run that was moved holds where it was made."""
    for method in ("fedavg", "fedprox"):
        for seed in (0, 1):
            place = tmp_path / f"from_{method}" / f"seed_{seed}"
            make_run(place, seed, model={"weights": f"/started/{method}/seed_{seed}/init.safetensors"})
    runs, skipped = find_runs([tmp_path])
    assert (len(runs), skipped) == (4, [])
    assert all("model.weights" in run.setting and "cache" not in run.setting for run in runs)
    moved = make_run(tmp_path / "elsewhere" / "run", 7).rename(tmp_path / "moved")
    (moved / ".hydra").mkdir()
    record = {"hydra": {"runtime": {"output_dir": str(tmp_path / "elsewhere" / "run"), "choices": None}}}
    (moved / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump(record))
    ((run,), _) = find_runs([moved])
    assert "cache" not in run.setting
