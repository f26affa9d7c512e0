"""FedMA and its relatives on the command line: a pass that is broken off and goes on, and what is refused."""

import csv
import json

import numpy as np
import pytest
from refusals import command, refused, refused_at_start

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


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("algorithm=pfnm model.hidden=[8,8]", "64 %"),
        ("algorithm=pfnm model.hidden=[8,8,8]", "51 %"),
        ("algorithm=fedma_oneshot model.hidden=[8,8,8]", None),
        ("algorithm=fedma_oneshot model.hidden=[8,8,8] algorithm.server.matching.shrink=true", "51 %"),
        ("algorithm=pfnm model.hidden=[8,8,8] algorithm.server.matching.sigma02=4", "82 %"),
    ],
)
def test_shrinking_that_leaves_little_of_what_is_fused_is_said(words, left, cli, small, caplog):
    """Each matched layer keeps 4 / 5 of the mean of 4 clients with variances of 1; below .6 in all is little."""
    outcome = cli(*small, *words.split(" "), "federation.num_rounds=0")
    assert outcome.code == 0, outcome.stderr
    said = "shrink=true leaves at most"
    if left == "51 %":
        assert f"{said} 51 % of the outputs of 4 clients after 3 matched layers" in caplog.text
    else:
        assert said not in caplog.text


CHAIN = r"model must be a chain of plain convolutions and linear layers .*, but block \w+ has a "
REFUSED = {
    "one layer": ("model.hidden=[]", r"model must have at least 2 layers .*, but this one has 1\."),
    "groups": ("structure=grouped", CHAIN),
    "trimmed groups": ("structure=trimmed partition=n_classes partition.classes_per_client=1", CHAIN),
    "some clients": (
        "federation.cohort_size=2",
        r"federation\.cohort_size must be null or all 4 clients .* for algorithm=fedma, but it is 2\.",
    ),
    "a fraction": (
        "federation.fraction=0.5",
        r"federation\.cohort_size must be null or all 4 clients .* for algorithm=fedma, but it is 2\.",
    ),
    "stragglers dropped": (
        "scenario.straggler_fraction=0.5 scenario.straggler_policy=drop",
        r"scenario\.straggler_policy must be partial for algorithm=fedma, which needs all clients .*, .* 'drop'\.",
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


HALVES = r"algorithm/client and algorithm/server must exchange the same payload, but "
PERSONAL = r"algorithm\.client\.personal must be \[\] for {}, which takes whole networks, but it keeps {}\."
IMAGES = "data=synthetic data.loader.shape=[3,32,32]"
WHOLE = {
    "fused features": (
        "algorithm=ot_fusion algorithm/client=fedfusion",
        r"model must be a chain .* where neurons are matched, but fusion\.\S+ belongs to none of its layers\.",
    ),
    "fused features, PFNM": (
        "algorithm=pfnm algorithm/client=fedfusion",
        HALVES + r"FedFusionClient speaks Weights and PFNMServer speaks WholeNetwork\.",
    ),
    "fixed widths": (
        "algorithm=pfnm algorithm/client=fedprox",
        HALVES + r"FedProxClient speaks Weights and PFNMServer speaks WholeNetwork\.",
    ),
    "fixed widths, FedMA": (
        "algorithm=fedma_oneshot algorithm/client=fedrep",
        HALVES + r"FedRepClient speaks Weights and OneShotFedMAServer speaks WholeNetwork\.",
    ),
    "a personal layer": (
        "algorithm=ot_fusion algorithm.client.personal=[last]",
        PERSONAL.format("OTFusionServer", r"2 tensors back, head\.fc2\.linear\.weight first"),
    ),
    "a personal head": (
        "algorithm=ot_fusion algorithm/client=fedrep",
        PERSONAL.format("OTFusionServer", r"2 tensors back, head\.fc2\.linear\.weight first"),
    ),
    "all personal": (
        "algorithm=ot_fusion algorithm/client=local",
        PERSONAL.format("OTFusionServer", r"4 tensors back, \S+ first"),
    ),
    "a personal layer, PFNM": (
        "algorithm=pfnm +algorithm.client.personal=[last]",
        PERSONAL.format("PFNMServer", r"2 tensors back, .*"),
    ),
    "a personal layer, FedMA": (
        "algorithm=fedma +algorithm.client.personal=[last]",
        PERSONAL.format("FedMAServer", r"2 tensors back, .*"),
    ),
    "less than a pass": (
        "algorithm=fedma model.hidden=[8,6] federation.num_rounds=2",
        r"federation\.num_rounds must be 0 or at least 3 for algorithm=fedma, a round for each layer .* it is 2\.",
    ),
    "some clients, PFNM": (
        "algorithm=pfnm federation.fraction=0.5",
        r"federation\.cohort_size must be null or all 4 clients .* for algorithm=pfnm, but it is 2\.",
    ),
    "some clients, FedMA's matching": (
        "algorithm=fedma_oneshot federation.fraction=0.5",
        r"federation\.cohort_size must be null or all 4 clients .* for algorithm=fedma_oneshot, but it is 2\.",
    ),
} | {
    f"{what}, {algorithm}": (f"algorithm={algorithm} {overrides}", CHAIN)
    for algorithm in ("ot_fusion", "fedma_oneshot")
    for what, overrides in {
        "norms": "data=synthetic data.loader.shape=[1,16,16] model=vgg9 model.norm=bn",
        "residual links": f"{IMAGES} model=torchvision",
        "groups": "structure=grouped",
    }.items()
}


@pytest.mark.parametrize("case", WHOLE)
def test_servers_of_whole_networks_refuse_at_start(case, cli, small, tmp_path):
    overrides, sentence = WHOLE[case]
    refused_at_start(cli, small, overrides, tmp_path, sentence)


@pytest.mark.parametrize(("num_rounds", "lost"), [(0, 0), (2, 0), (3, 1), (4, 0)])
def test_rounds_after_the_last_pass_are_announced(num_rounds, lost, cli, small, caplog):
    outcome = cli(*small, "algorithm=fedma", f"federation.num_rounds={num_rounds}")
    assert outcome.code == 0, outcome.stderr
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    sentence = (
        "algorithm=fedma takes 2 rounds for a pass over the model: "
        f"the last {lost} of federation.num_rounds={num_rounds} are lost."
    )
    assert [text for text in warnings if "a pass over" in text] == [sentence] * bool(lost)


def test_a_pass_over_vgg9(cli, small, tmp_path):
    """Nine rounds, two clients with a batch each; the model is complete after the last, and may be wider."""
    overrides = (
        "algorithm=fedma model=vgg9 data=synthetic data.loader.shape=[3,16,16] data.loader.num_classes=3 "
        "data.loader.num_train=8 data.loader.num_test=6 federation.num_clients=2 federation.num_rounds=9 "
        "federation.batch_size=4 trainer.num_threads=1"
    )
    outcome = cli(*command(small, overrides, tmp_path))
    assert outcome.code == 0, outcome.stderr
    with (tmp_path / "run" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    losses = [row["global/loss"] for row in rows]
    assert losses[:9] == losses[:1] * 9
    assert losses[9] != losses[0]
    sent = np.diff([float(row["comm/up_bytes"]) for row in rows])
    # Two clients, 4 bytes: 32 filters of 3 x 3 x 3 with biases at first, at last 3 classes with an input per neuron.
    assert sent[0] == 2 * 4 * 32 * (27 + 1)
    width = sent[8] / (2 * 4 * 3) - 1
    assert 512 <= width <= 1024
    # fc1 has 512 rows; conv6 gives 2 x 2 features for each of its filters.
    inputs = sent[6] / (2 * 4 * 512) - 1
    assert 4 * 256 <= inputs <= 4 * 512
    assert inputs % 4 == 0


def test_pfnm_without_a_perceptron_is_refused(cli, small, tmp_path):
    overrides = "algorithm=pfnm data=synthetic data.loader.shape=[1,8,8] model=digits_cnn"
    sentence = r"model must have linear layers with bias alone \(mlp\) for algorithm=pfnm, but encoder\.conv1\.conv is "
    refused_at_start(cli, small, overrides, tmp_path, sentence)
