"""The notebook of FedHeNN's kernels: clients of three architectures come to agree, and it says so by our functions."""

import json

import pytest
from notebook_runs import Stored, data, printed, run_once

pytestmark = pytest.mark.slow

READ_BACK = """
import json
from pathlib import Path
print(json.dumps({
    "widths": [[a.shape[1] for a in clients] for _, clients in found["FedHeNN"]],
    "pairs": {name: [mean_of_pairs(one) for one in kept] for name, kept in alignments.items()},
    "first": alignments["alone"][0].tolist(),
    "accuracy": {name: [accuracy for accuracy, _ in rounds] for name, rounds in found.items()},
    "left": sorted(path.name for path in Path("..").iterdir()),
}))
"""
executed = run_once("fedhenn_kernels", READ_BACK)


@pytest.fixture(scope="module")
def found(executed):
    return json.loads(printed(executed["read_back"]).splitlines()[-1])


class TestAsStored(Stored):
    NAME = "fedhenn_kernels"


def test_architectures_differ_and_start_equal(found):
    assert found["widths"] == [[32, 48, 64] * 2] * 13
    first = found["first"]
    assert [first[k][k + 3] for k in range(3)] == pytest.approx([1.0] * 3, abs=1e-6)
    assert max(first[0][1], first[0][2], first[1][2]) < 0.6


def test_clients_agree_with_the_term_and_not_without(found):
    alone, together = found["pairs"]["alone"], found["pairs"]["FedHeNN"]
    assert alone[0] == together[0]
    assert together[-1] > 0.9 > 0.6 > alone[-1]


def test_accuracy_gains_as_the_text_says(found):
    assert found["accuracy"]["FedHeNN"][-1] > found["accuracy"]["alone"][-1]


@pytest.mark.parametrize("name", ["maps", "curve", "plane"])
def test_the_pictures_are_drawn(name, executed):
    assert len(data(executed[name], "image/png")) > 4_000
