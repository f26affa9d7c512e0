"""Stored runs by study, setting, arm and seed."""

import json
import math
from pathlib import Path

import yaml

from fedfeat.evidence.archive import Archive
from fedfeat.evidence.campaign import Campaign, Cell, Study

STUDIES = {
    name: Study(name, (), {"a": (), "b": ()}, {"x": (), "y": ()}, {"": ()}, (0, 1)) for name in ("one", "two")
}


def store(root: Path, cell: Cell, accuracy, reached, seconds=1800.0):
    place = root / cell.name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text(yaml.safe_dump({"seed": cell.seed, "federation": {"num_rounds": 2}}))
    rows = "".join(f"{at},{value}\n" for at, value in enumerate(accuracy))
    (place / "metrics.csv").write_text(f"round,global/acc\n{rows}")
    target = {"0.9": {"rounds": reached} if reached else None}
    summary = {
        "seed": cell.seed,
        "final": {"global/acc": accuracy[-1]},
        "to_target": target,
        "seconds": seconds,
    }
    (place / "summary.json").write_text(json.dumps(summary))


def test_values_by_seed_over_studies(tmp_path):
    archive = Archive(Campaign("k", (), {}, STUDIES), tmp_path)
    store(tmp_path, Cell("one", "x", "a", "", 0), [0.1, 0.2, 0.4], 2)
    store(tmp_path, Cell("two", "x", "a", "", 1), [0.1, 0.3, 0.5], None)
    store(tmp_path, Cell("one", "y", "a", "", 0), [0.1, 0.1, 0.1], None)
    half = tmp_path / Cell("one", "x", "b", "", 0).name  # a copy that was cut
    half.mkdir(parents=True)
    (half / "summary.json").write_text("{}")
    assert archive.values(["one", "two"], "x", "a", "global/acc") == {0: 0.4, 1: 0.5}
    assert archive.values(["one"], "x", "a", "last2/global/acc") == {0: 0.30000000000000004}
    assert archive.values(["one", "two"], "x", "a", "to_target/0.9/rounds") == {0: 2.0, 1: math.inf}
    assert archive.values(["one"], "x", "b", "global/acc") == {}
    assert archive.values(["one"], "x", "a", "personal/acc_mean") == {}
    assert archive.hours("one") == 1.0
