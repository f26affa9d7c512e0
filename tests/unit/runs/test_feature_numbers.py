"""What lies beside an encoding map gives back what it was drawn from."""

import numpy as np
import pytest
import torch

from fedfeat.errors import CheckpointError
from fedfeat.features.diagnostics import Alignment
from fedfeat.runs.feature_figures import draw_encodings
from fedfeat.runs.feature_numbers import read_alignment, write_alignments

FOUND = Alignment(
    ("conv1", "block.fc"),
    ((torch.tensor([0, 2, -1]), torch.tensor([1, 1, 1])), (torch.tensor([299]), torch.tensor([-1]))),
    (4, 700),
    {"align/agreement": 0.25, "align/distance": float("nan")},
)


def test_what_is_drawn_is_read_again(tmp_path):
    names = [f"class {i}" for i in range(300)]
    draw_encodings(tmp_path / "map.png", {"a/b: run": FOUND}, names)
    back = read_alignment(tmp_path / "map.npz")
    assert (back.layers, back.client_ids) == (FOUND.layers, FOUND.client_ids)
    assert [[p.tolist() for p in layer] for layer in back.primaries] == [
        [[0, 2, -1], [1, 1, 1]],
        [[299], [-1]],
    ]
    assert list(back.metrics) == list(FOUND.metrics)
    np.testing.assert_equal(list(back.metrics.values()), [0.25, float("nan")])


def test_equal_numbers_give_equal_files(tmp_path):
    for name in ("a.npz", "b.npz"):
        write_alignments(tmp_path / name, {"run": FOUND})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_damaged_files_are_refused_and_no_code_is_run(tmp_path):
    write_alignments(tmp_path / "a.npz", {"run": FOUND})
    torn = tmp_path / "torn.npz"
    torn.write_bytes((tmp_path / "a.npz").read_bytes()[:-40])
    with pytest.raises(CheckpointError, match=r"torn\.npz must be as the run wrote it"):
        read_alignment(torn)
    np.savez(tmp_path / "code.npz", **{"run/clients": np.array([print], dtype=object)})
    with pytest.raises(CheckpointError, match="allow_pickle"):
        read_alignment(tmp_path / "code.npz")
