"""Numbers of several seeds as the pages write them."""

import json
import math

from fedfeat.evidence.archive import Archive
from fedfeat.evidence.campaign import Campaign, Cell, Study
from fedfeat.evidence.tables import Tables
from fedfeat.evidence.wording import mean_text


def test_a_mean_says_how_many_seeds_never_came_there():
    assert mean_text({0: 14.0, 1: 16.0, 2: 18.0}) == "16.0 ± 5.0"
    assert mean_text({0: 14.0, 1: math.inf, 2: 18.0}) == "never in 1 of 3"
    assert mean_text({0: math.inf, 1: math.inf, 2: math.inf}) == "never"
    assert mean_text({0: math.inf, 1: math.inf}) == "never (2)"


def test_bytes_stand_in_megabytes(tmp_path):
    archive = Archive(
        Campaign("k", (), {}, {"s": Study("s", (), {"a": ()}, {"": ()}, {"": ()}, (0,))}), tmp_path
    )
    place = tmp_path / Cell("s", "", "a", "", 0).name
    place.mkdir(parents=True)
    (place / "config.yaml").write_text("seed: 0\n")
    (place / "metrics.csv").write_text("round,comm/total_bytes\n0,0\n1,250000000\n")
    reached = {"0.5": {"rounds": 4, "bytes": 12500000}}
    (place / "summary.json").write_text(json.dumps({"seed": 0, "to_target": reached, "final": {}}))
    tables = Tables(archive, tmp_path)
    assert "| a | 12.5 (1) |" in tables.accuracy_part("s", "to_target/0.5/bytes")
    assert "| a | 4.0 (1) |" in tables.accuracy_part("s", "to_target/0.5/rounds")
