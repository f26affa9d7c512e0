"""Whole runs in which clients have unequal networks."""

import csv
import json

from cut_runs import lose_end

from fedfeat.runs.checkpoint import CheckpointFolder

# Every client holds two of the three classes.
TWO_EACH = ("model.hidden=[8,6]", "partition=n_classes", "partition.classes_per_client=2")


def last_row(run):
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))[-1]


def test_a_trimmed_run_with_its_slices_goes_on_from_its_checkpoint(cli, small, tmp_path):
    """Of two hidden layers the first is everyone's, the second, of 6 neurons, is cut into slices."""
    run = tmp_path / "paired"
    words = (*small, *TWO_EACH, "algorithm=psi_net", "structure.depth=2", "structure.boundary_pairing=paired")
    assert cli(*words, f"hydra.run.dir={run}").code == 0
    first = last_row(run)
    # 16 * 8 + 8 are shared; a group has 8 * 2 + 2 of the second layer and 2 + 1 of the last.
    assert float(first["comm/up_bytes"]) == 3 * 4 * 4 * (136 + 2 * 21)
    folder = CheckpointFolder(run / "checkpoints")
    groups = folder.load_latest().server_state.group_of_row
    assert groups["encoder.fc2.linear.weight"].tolist() == [0, 0, 1, 1, 2, 2]

    summary = json.loads((run / "summary.json").read_text())
    lose_end(run, 3)
    assert folder.load_latest().round_idx == 2
    assert cli(*words, f"hydra.run.dir={run}").code == 0
    again = json.loads((run / "summary.json").read_text())
    assert again["weights_sha256"] == summary["weights_sha256"]
    assert last_row(run) | {k: v for k, v in first.items() if k.startswith("time/")} == first


def test_a_trimmed_run_costs_less_and_goes_on_from_its_checkpoint(cli, small, tmp_path):
    runs = {name: tmp_path / name for name in ("fed2", "psi_net")}
    for name, run in runs.items():
        assert cli(*small, *TWO_EACH, f"algorithm={name}", f"hydra.run.dir={run}").code == 0
    fed2, psi_net = (last_row(run) for run in runs.values())
    for metric in ("comm/up_bytes", "comm/down_bytes", "compute/flops"):
        assert 0 < float(psi_net[metric]) < float(fed2[metric])
    # 16 * 9 + 9 shared; a group has 3 * 2 + 2 + 2 + 1. Two of three are sent to four clients in three rounds.
    assert float(psi_net["comm/up_bytes"]) == 3 * 4 * 4 * (153 + 2 * 11)

    run = runs["psi_net"]
    folder = CheckpointFolder(run / "checkpoints")
    state = folder.load_latest().server_state
    assert state.class_sets == ((0,), (1,), (2,))
    assert {len(own) for own in state.own_sets} == {2}
    assert sum(tensor.numel() for tensor in state.params.values()) == 153 + 3 * 11

    summary = json.loads((run / "summary.json").read_text())
    lose_end(run, 3)
    assert folder.load_latest().round_idx == 2
    assert cli(*small, *TWO_EACH, "algorithm=psi_net", f"hydra.run.dir={run}").code == 0
    again = json.loads((run / "summary.json").read_text())
    assert again["weights_sha256"] == summary["weights_sha256"]
    assert last_row(run) | {k: v for k, v in psi_net.items() if k.startswith("time/")} == psi_net
