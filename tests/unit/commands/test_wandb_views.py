"""Views and reports of W&B: what would be sent is read from the library's own serialisation."""

import json

import pytest

from fedfeat.commands.wandb_panels import AXES, COST_METRICS, Shown
from fedfeat.commands.wandb_views import report, sent, workspace

# wandb-workspaces is written for an older pydantic.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")

SHOWN = Shown(("global/acc", "personal/acc_mean"), "method")


def plain(panel):
    """What a panel shows, by its parts."""
    config = panel["config"]
    parts = ("xAxis", "yAxis", "metrics", "groupBy", "groupAgg", "groupArea", "mediaKeys")
    return panel["viewType"], {name: config[name] for name in parts if name in config}


def line(metric, axis, by="method.value"):
    """A curve of the mean over runs with a band of one standard deviation."""
    parts = {"xAxis": axis, "metrics": [metric], "groupBy": by, "groupAgg": "mean", "groupArea": "stddev"}
    return "Run History Line Plot", parts


def bars(metric, by="method.value"):
    return "Bar Chart", {"metrics": [metric], "groupBy": by, "groupAgg": "mean", "groupArea": "stddev"}


def media(name):
    return "Media Browser", {"mediaKeys": [f"figures/{name}"]}


EXPECTED = {
    "Accuracy over rounds, bytes and examples": [line(name, axis) for name in SHOWN.metrics for axis in AXES],
    "Clients": [line("global/client_acc_worst", "round"), line("personal/acc_worst", "round"), ("Weave", {})],
    "Alignment": [line("align/agreement", "round"), line("align/distance", "round"), media("encoding")],
    "Cost": [bars(name) for name in COST_METRICS],
    "Published and measured": [
        ("Scatter Plot", {"xAxis": "config:published.value.global/acc", "yAxis": "summary:global/acc"}),
        bars("global/acc", "setting.value"),
    ],
    "Pictures": [media("convergence"), media("split")],
}


def test_the_axes_of_curves():
    assert list(AXES) == ["round", "comm/total_bytes", "compute/examples"]


def test_a_workspace_has_all_sections_grouped_by_method():
    view = sent(workspace("me", "proj", "mine", SHOWN, ["fed2"]))
    assert (view["entityName"], view["projectName"], view["displayName"]) == ("me", "proj", "mine")
    section = view["spec"]["section"]
    found = {one["name"]: [plain(p) for p in one["panels"]] for one in section["panelBankConfig"]["sections"]}
    assert found == EXPECTED
    assert section["settings"]["xAxis"] == "round"
    (runs,) = section["runSets"]
    assert runs["grouping"] == [{"section": "config", "name": "method.value"}]
    assert runs["runFeed"]["columnOrder"][:4] == [
        "run:displayName",
        "config:method.value",
        "config:data.value",
        "config:partition.value",
    ]
    assert {"summary:global/acc", "config:published.value.global/acc"} <= set(runs["runFeed"]["columnOrder"])
    text = json.dumps(runs["filters"])
    assert '"tags"' in text
    assert '["fed2"]' in text
    assert "clients/last_round" in json.dumps(section)


def test_without_tags_nothing_is_filtered():
    (runs,) = sent(workspace("me", "proj", "mine", SHOWN))["spec"]["section"]["runSets"]
    assert '"tags"' not in json.dumps(runs["filters"])


@pytest.mark.parametrize(
    ("by", "key"), [("setting", "setting.value"), ("config.structure.depth", "config.value.structure.depth")]
)
def test_another_fact_groups_everything(by, key):
    shown = Shown(("val/acc",), by)
    section = sent(workspace("me", "proj", "mine", shown))["spec"]["section"]
    assert section["runSets"][0]["grouping"] == [{"section": "config", "name": key}]
    assert plain(section["panelBankConfig"]["sections"][0]["panels"][0]) == line("val/acc", "round", key)
    grids = [
        block for block in sent(report("me", "proj", "r", shown))["spec"]["blocks"] if "metadata" in block
    ]
    keys = [one["name"] for grid in grids for runs in grid["metadata"]["runSets"] for one in runs["grouping"]]
    assert set(keys) == {key}


def test_a_report_has_the_same_panels_under_headings_and_the_table():
    table = "| setting | global/acc |\n| --- | --- |\n| fed2 | 0.9 |\n"
    view = sent(report("me", "proj", "title", SHOWN, ["fed2"], table))
    assert view["displayName"] == "title"
    found, heading = {}, ""
    for block in view["spec"]["blocks"]:
        if block["type"] == "heading":
            heading = block["children"][0]["text"]
        if block["type"] == "panel-grid":
            grid = block["metadata"]
            found[heading] = [plain(panel) for panel in grid["panelBankSectionConfig"]["panels"]]
            (runs,) = grid["runSets"]
            assert "project" not in runs  # that of the report
            assert '["fed2"]' in json.dumps(runs["filters"])
    assert found == EXPECTED
    assert table.strip() in json.dumps(view["spec"]["blocks"]).replace("\\n", "\n")


def test_panels_of_a_report_do_not_lie_upon_each_other():
    for block in sent(report("me", "proj", "title", SHOWN))["spec"]["blocks"]:
        if block["type"] == "panel-grid":
            places = [panel["layout"] for panel in block["metadata"]["panelBankSectionConfig"]["panels"]]
            assert len({(place["x"], place["y"]) for place in places}) == len(places)
