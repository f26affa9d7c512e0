"""The page of a report as text: it says what the other forms say, escapes what runs say, loads nothing."""

import base64
import hashlib
import html
import json
import os
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from report_runs import add_details, make_run

from fedfeat.commands import report_details
from fedfeat.commands.report import main
from fedfeat.commands.report_gathered import gather
from fedfeat.runs.finished import find_runs

EVIL = "</script><script>x=1</script><img src=//e.eu>"


def make_page(folder, *more):
    out = folder / "out"
    main([str(folder / "in"), *(more or ("--x", "algorithm")), "--html", "--out", str(out)])
    return (out / "report.html").read_text()


def tables(page):
    """Rows of cells by caption, as text."""
    found = {}
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        rows = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        cells = [
            [html.unescape(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows
        ]
        found[html.unescape(re.search(r"<caption>(.*?)</caption>", table)[1])] = cells
    return found


class Elements(HTMLParser):
    """All elements with their attributes, as a browser finds them."""

    def __init__(self):
        super().__init__()
        self.all = []

    def handle_starttag(self, tag, attrs):
        self.all.append((tag, attrs))


def data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two methods with three seeds each, one of them with published numbers, all with what a page shows."""
    folder = tmp_path_factory.mktemp("page")
    for seed in range(3):
        published = {"global/acc": 0.65, "to_target/0.3/rounds": 5}
        one = make_run(folder / "in" / f"a{seed}", seed, "fed2", acc=0.6 + 0.1 * seed, published=published)
        other = make_run(folder / "in" / f"b{seed}", seed, acc=0.5 + 0.08 * seed, optimizer={"lr": 0.1})
        add_details(one, seed)
        add_details(other, seed)
    return folder


@pytest.fixture(scope="module")
def page(place):
    return make_page(place)


def test_the_tables_are_those_of_the_text(place, page):
    text = (place / "out" / "report.md").read_text()
    lines = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    shown = tables(page)
    main_table = shown["Settings: mean ± standard deviation over runs"]
    pair_table = shown["Differences, paired by seed"]
    assert main_table + pair_table == [line for line in lines if set(line) != {"---"}]
    assert len(main_table) == 3
    for note in re.findall(r"^[A-Z].*\.$", text, re.MULTILINE):
        assert html.escape(note, quote=False).replace("'", "&#39;") in page


def test_what_is_sorted_by_is_the_number_itself(page):
    values = re.findall(r'data-value="([^"]*)">([^<]*)<', page)
    assert ("0.7", "0.7 ± 0.1 (published 0.65)") in [(f"{float(v):g}", text) for v, text in values]


def test_published_stands_beside_measured(page):
    rows = tables(page)["Published against measured"]
    assert rows[1:] == [
        ["fed2", "global/acc", "0.65", "0.7", "0.1", "+0.05", "3"],
        ["fed2", "to_target/0.3/rounds", "5", "3", "0", "-2", "3"],
    ]


def test_configurations_and_provenance(place, page):
    shown = tables(page)
    differing = {row[0]: row[1:] for row in shown["Keys of the configuration in which settings differ"]}
    assert differing["optimizer.lr"] == ["", "0.1"]
    assert differing["algorithm.name"] == ["fed2", "fedavg"]
    assert "partition.alpha" not in differing
    head, *rows = shown["Runs"]
    first = dict(zip(head, rows[0], strict=True))
    assert first == {
        **{"setting": "fed2", "seed": "0", "commit": "c" * 10, "examples": "e" * 10, "split": "0" * 10},
        **{"configuration": "a" * 10, "weights": "b" * 10, "seconds": "7", "directory": "a0"},
    }
    assert f'title="{"b" * 64}"' in page
    assert "Of all runs: python 3.12.1, torch 2.9." in page
    assert len(rows) == 6


def altered(run, change):
    """Rewrite the summary of a run."""
    summary = json.loads((run / "summary.json").read_text())
    change(summary)
    (run / "summary.json").write_text(json.dumps(summary))


def test_versions_that_differ_have_a_column(place, tmp_path):
    for seed, version in enumerate(("2.9", "2.8")):
        run = add_details(make_run(tmp_path / "in" / str(seed), seed), seed)
        altered(run, lambda summary, version=version: summary["versions"].update(torch=version))
    page = make_page(tmp_path)
    head, *rows = tables(page)["Runs"]
    assert [row[head.index("versions")] for row in rows] == ["torch 2.9", "torch 2.8"]
    assert "Of all runs: python 3.12.1." in page


SLOW = {"cpu": "One", "cores": 2, "bf16": None, "gpu": None}
FAST = {"cpu": "Two", "cores": 16, "bf16": "amx_bf16", "gpu": "H100"}


@pytest.mark.parametrize(
    ("machines", "column"),
    [
        ([[SLOW], [SLOW]], None),
        ([[SLOW], [SLOW, FAST]], ["One, 2 cores", "One, 2 cores; Two, 16 cores, amx_bf16, H100"]),
        ([[SLOW], None], ["One, 2 cores", ""]),
        ([None, None], None),
    ],
    ids=["alike", "differing", "older", "all older"],
)
def test_machines_that_differ_have_a_column(machines, column, tmp_path):
    for seed, found in enumerate(machines):
        run = add_details(make_run(tmp_path / "in" / str(seed), seed), seed)
        altered(run, lambda summary, found=found: summary.update(machines=found))
    page = make_page(tmp_path)
    head, *rows = tables(page)["Runs"]
    assert ([row[head.index("machine")] for row in rows] if "machine" in head else None) == column
    assert ("All ran on One, 2 cores." in page) == (machines == [[SLOW], [SLOW]])


def test_curves_clients_splits_and_maps_are_those_of_the_files(page):
    found = data(page)
    fed2 = found["curves"]["settings"]["fed2"]
    assert found["curves"]["axes"] == ["round", "bytes", "examples", "seconds"]
    assert fed2["axes"]["bytes"] == [0, 1000, 2000, 3000, 4000]
    assert fed2["values"]["global/acc"]["mean"] == pytest.approx([0, 0.175, 0.35, 0.525, 0.7])
    assert fed2["values"]["global/acc"]["std"] == pytest.approx([0, 0.025, 0.05, 0.075, 0.1])
    clients = found["clients"]["settings"]["fed2"]
    assert (clients["num"], clients["box"]) == (9, [0.5, 0.5, 0.625, 0.75, 0.75])
    assert sorted(clients["dots"])[:2] == [[0, 0, 0.5, 10], [0, 1, 0.625, 20]]
    (split,) = found["splits"]["splits"]
    assert (split["counts"], split["settings"]) == ([[10, 0], [20, 0], [30, 0]], ["fed2", "fedavg"])
    drawn, _ = found["maps"]["maps"]
    (layer,) = drawn["layers"]
    assert (drawn["setting"], drawn["round"], drawn["agreement"], layer["agreement"]) == (
        "fed2",
        4,
        0.25,
        0.5,
    )
    assert list(base64.b64decode(layer["data"])) == [255, 0, 1, 255, 0, 1, 255, 0, 1, 255, 0, 1]


@pytest.mark.parametrize(
    "metric", ["last3/personal/acc_mean", "within/bytes/1e9/personal/acc_mean", "personal/acc_mean"]
)
def test_clients_are_those_of_the_model_that_a_computed_metric_is_about(metric, tmp_path):
    run = add_details(make_run(tmp_path / "in" / "a", algorithm="fedrep"))
    for name, other in (("metrics.csv", "global/acc"), ("summary.json", "global/acc")):
        (run / name).write_text((run / name).read_text().replace(other, "personal/acc_mean"))
    lines = (run / "clients.csv").read_text().splitlines()
    filled = [line.rpartition(",")[0] + ",0.9" for line in lines[1:]]
    (run / "clients.csv").write_text("\n".join([lines[0], *filled]) + "\n")
    found = data(make_page(tmp_path, "--metric", metric, "--x", "algorithm"))["clients"]["settings"]["fedrep"]
    assert (found["of"], found["box"]) == ("personal_acc", [0.9] * 5)


def test_settings_keep_the_order_of_the_table(tmp_path):
    for depth in (2, 10):
        make_run(tmp_path / "in" / str(depth), structure={"depth": depth})
    names = [f"fedavg, structure.depth={depth}" for depth in (2, 10)]
    assert [*data(make_page(tmp_path))["curves"]["settings"]] == names


def test_whatever_comes_from_runs_is_text(tmp_path):
    for seed in range(2):
        run = make_run(tmp_path / "in" / f"<b>{seed}", seed, EVIL, data={"name": EVIL}, x={EVIL: EVIL + "1"})
        add_details(run, seed, classes=(EVIL, "1"))
        summary = json.loads((run / "summary.json").read_text())
        summary |= {"git_commit": EVIL, "versions": {EVIL: EVIL}, "weights_sha256": '" onclick="alert(1)'}
        (run / "summary.json").write_text(json.dumps(summary))
    make_run(tmp_path / "in" / "c", 0, "fedavg", data={"name": "digits"})
    page = make_page(tmp_path, "--x", "round")
    assert "//e.eu" in page
    assert "<b>" not in page
    found = Elements()
    found.feed(page)
    assert "img" not in {tag for tag, _ in found.all}
    assert not {name for _, attributes in found.all for name, _ in attributes if name.startswith("on")}
    # The data, and the page's own script.
    assert re.findall(r"<script[^>]*>", page) == ['<script type="application/json" id="data">', "<script>"]
    assert any(EVIL in name for name in data(page)["curves"]["settings"])


def test_nothing_is_loaded_and_the_policy_names_what_is_there(page):
    assert not re.search(r"https?:|\bimport\b\s*\(|fetch\(|XMLHttp|<link|<iframe|@import|url\(", page)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    assert policy.startswith("default-src 'none'; ")
    for kind, tag in (("script-src", "script"), ("style-src", "style")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}';" in policy
    assert " style=" not in page
    assert "innerHTML" not in page
    assert all(
        source.startswith("data:image/svg+xml;base64,") for source in re.findall(r'src="([^"]*)"', page)
    )


def test_equal_runs_give_an_equal_page(place, page):
    assert make_page(place) == page


def test_where_it_goes(place, tmp_path, capsys):
    target, link = tmp_path / "elsewhere" / "mine.html", tmp_path / "link.html"
    target.parent.mkdir()
    target.write_text("of another day")
    link.symlink_to(target)
    main([str(place / "in"), "--x", "algorithm", "--out", str(tmp_path / "o"), "--html", str(link)])
    assert link.is_symlink()
    assert target.read_text().startswith("<!doctype html>")
    assert str(target) in capsys.readouterr().out.replace("\n", "")


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_left_alone(place, tmp_path, capsys, kind):
    """Nor is a device, which the page would replace where that is allowed."""
    target = tmp_path / "there"
    target.mkdir() if kind == "folder" else os.mkfifo(target)
    with pytest.raises(SystemExit, match="2"):
        main([str(place / "in"), "--out", str(tmp_path / "p"), "--html", str(target)])
    assert "--html must be a file, behind the folders of the runs, but it is" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()
    assert target.exists()
    assert not target.is_file()


def test_runs_without_further_files_and_with_damaged_ones_have_a_page(tmp_path):
    make_run(tmp_path / "in" / "plain")
    torn = add_details(make_run(tmp_path / "in" / "torn", algorithm="fed2"))
    for name in ("data.json", "clients.csv", "figures/encoding_round_0004.npz"):
        (torn / name).write_bytes(b'{"class_counts": 5, "fingerprint": 3')
    strange = add_details(make_run(tmp_path / "in" / "strange", algorithm="moon"))
    (strange / "data.json").write_text(
        '{"class_counts": [5], "fingerprint": 3, "input_shape": 1, "classes": 2}'
    )
    found = data(make_page(tmp_path))
    assert found["splits"]["splits"] == []
    assert [one["setting"] for one in found["maps"]["maps"]] == ["moon"]
    assert [*found["clients"]["settings"]] == ["moon"]


def test_of_many_runs_bounds_hold_and_are_said(tmp_path, monkeypatch):
    """Of three settings two maps and splits, of five rounds three with the last, of three clients two."""
    bounds = {"MOST_MAPS": 2, "MOST_SPLITS": 2, "MOST_POINTS": 3, "MOST_ROWS": 2}
    for name, bound in bounds.items():
        monkeypatch.setattr(report_details, name, bound)
    for depth in range(3):
        run = make_run(tmp_path / "in" / str(depth), structure={"depth": depth})
        add_details(run, classes=(str(depth), "1"), seed=depth)
        facts = json.loads((run / "data.json").read_text())
        (run / "data.json").write_text(json.dumps({**facts, "classes": ["0", "1"]}))
    page = make_page(tmp_path)
    found = data(page)
    assert (len(found["maps"]["maps"]), found["maps"]["left_out"]) == (2, 1)
    assert (len(found["splits"]["splits"]), found["splits"]["left_out"]) == (2, 1)
    assert found["curves"]["settings"]["fedavg, structure.depth=0"]["axes"]["round"] == [0, 2, 4]
    assert (found["splits"]["splits"][0]["clients"], found["splits"]["splits"][0]["of"]) == ([0, 2], 3)
    for sentence in (
        "Of long curves",
        "splits that are left out: 1.",
        "maps are left out: 1;",
    ):
        assert sentence in page


def test_a_quantity_of_ones_own_is_a_curve_by_its_name(place):
    asked = ["best=personal/acc_mean,global/acc"]
    found = report_details.curves(gather(find_runs([place / "in"])[0], asked))
    assert found["metrics"][0] == "best"
    assert np.isclose(found["settings"]["fed2"]["values"]["best"]["mean"][-1], 0.7)
