"""FedMA and its relatives on the command line: a pass that is broken off and goes on, and what is refused."""

import json

import pytest
from refusals import refused, refused_at_start

RUN = ("algorithm=fedma", "model.hidden=[8,6]", "partition=quantity_skew", "partition.min_size=5")


def weights_of(root, name):
    return json.loads((root / name / "summary.json").read_text())["weights_sha256"]


def test_a_pass_that_is_broken_off_goes_on_bit_for_bit(cli, small, tmp_path, monkeypatch):
    """Passes of 3 rounds, checkpoints of all; the fifth round breaks off, and starts again in the middle of a pass."""
    from fedfeat.algorithms.fedma import FedMAServer

    run = [
        *small,
        *RUN,
        "federation.num_rounds=7",
        "algorithm.server.init=independent",
        "optimizer.momentum=0.5",
    ]
    assert cli(*run, f"hydra.run.dir={tmp_path / 'whole'}").code == 0
    aggregate, calls = FedMAServer.aggregate, []

    def breaking(self, state, updates):
        calls.append(state.stage)
        if len(calls) == 5:
            list(updates)
            raise OSError("no space left")
        return aggregate(self, state, updates)

    monkeypatch.setattr(FedMAServer, "aggregate", breaking)
    assert cli(*run, f"hydra.run.dir={tmp_path / 'broken'}").code != 0
    assert not (tmp_path / "broken" / "summary.json").exists()
    outcome = cli(*run, f"hydra.run.dir={tmp_path / 'broken'}")
    assert outcome.code == 0, outcome.stderr
    assert calls == [0, 1, 2, 0, 1, 1, 2, 0]
    assert weights_of(tmp_path, "broken") == weights_of(tmp_path, "whole")


@pytest.mark.parametrize(
    "overrides",
    [
        "algorithm=pfnm",
        "algorithm=fedma_oneshot",
        "algorithm=ot_fusion",
        "algorithm=ot_fusion algorithm.server.anchor=client algorithm.server.weighting=uniform",
    ],
)
def test_whole_networks_are_fused(overrides, cli, small, tmp_path):
    outcome = cli(*small, *overrides.split(" "), "federation.num_rounds=2")
    assert outcome.code == 0, outcome.stderr
    final = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]
    # Both ways: 4 clients, 2 rounds, 16 x 8 and 8 x 3 weights with biases of 4 bytes.
    assert final["comm/total_bytes"] == 2 * 4 * 2 * 4 * (17 * 8 + 9 * 3)


CHAIN = r"model must be a chain of plain convolutions and linear layers .*, but block \w+ has a "
REFUSED = {
    "one layer": ("model.hidden=[]", r"model must have at least 2 layers .*, but this one has 1\."),
    "groups": ("structure=grouped", CHAIN),
    "trimmed groups": ("structure=trimmed partition=n_classes partition.classes_per_client=1", CHAIN),
    "some clients": (
        "federation.cohort_size=2",
        r"federation\.cohort_size must be null or all 4 clients for algorithm=fedma, but it is 2\.",
    ),
    "a fraction": (
        "federation.fraction=0.5",
        r"federation\.cohort_size must be null or all 4 clients for algorithm=fedma, but it is 2\.",
    ),
    "stragglers dropped": (
        "federation.straggler_fraction=0.5 federation.straggler_policy=drop",
        r"federation\.straggler_policy must be partial for algorithm=fedma, which needs all clients .*, .* 'drop'\.",
    ),
    "momentum kept": (
        "federation.opt_state=keep",
        r"federation\.opt_state must be reset for algorithm=fedma, but it is 'keep'\.",
    ),
    "another payload": (
        "algorithm/server=fedavg",
        r"algorithm/client and algorithm/server must exchange the same payload, but FedMAClient speaks",
    ),
    "norms": (
        "data.loader.shape=[1,16,16] model=vgg9 model.norm=bn data=synthetic",
        CHAIN,
    ),
    "residual links": ("data.loader.shape=[3,32,32] model=torchvision data=synthetic", CHAIN),
    "a pool": (
        "data=synthetic data.loader.shape=[3,32,32] model=fedrep_cnn10 pool=hetero_cnn",
        r"algorithm/server must average unequal networks .*, but FedMAServer cannot\.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_at_start(case, cli, small, tmp_path):
    overrides, sentence = REFUSED[case]
    refused_at_start(cli, small, f"algorithm=fedma {overrides}", tmp_path, sentence)


def test_a_failed_client_cannot_be_skipped(cli, small, tmp_path):
    outcome = cli(*small, *RUN, "federation.on_client_error=skip", "optimizer.lr=1e30")
    refused(
        outcome, r"All 4 clients must send an update in every round where neurons are matched, but 0 did\."
    )
    assert not (tmp_path / "run" / "summary.json").exists()


def test_pfnm_without_a_perceptron_is_refused(cli, small, tmp_path):
    overrides = "algorithm=pfnm data=synthetic data.loader.shape=[1,8,8] model=digits_cnn"
    sentence = r"model must have linear layers with bias alone \(mlp\) for algorithm=pfnm, but encoder\.conv1\.conv is "
    refused_at_start(cli, small, overrides, tmp_path, sentence)
