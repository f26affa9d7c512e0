"""FedFusion through the real loop: by hand, where it is another method, what it costs, and planted bugs."""

from itertools import pairwise

import pytest
import torch
from fusion_rounds import (
    CHANNELS,
    CONV,
    LAMBDA,
    LR,
    ROUNDS,
    SETTINGS,
    STEPS,
    Setting,
    check,
    federation_of,
    network,
)
from grouped_rounds import grouped_data
from harness import SIZES, parties
from harness import federation_of as described

import fedfeat.models.policy
from fedfeat import tree
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedfusion import FedFusionClient, FedFusionServer
from fedfeat.algorithms.fedopt import FedAvgMServer
from fedfeat.algorithms.versions import Versions
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.models.frozen import FrozenCopy, frozen_keys
from fedfeat.models.fusion import ConvFusion, Fusion, LambdaFusion
from fedfeat.params import WeightedMean
from fedfeat.types import Update, Weights


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_by_hand(name, tmp_path):
    check(SETTINGS[name], tmp_path)


class FixedLambda(FedFusionClient):
    """A client whose lambda is not trained."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        self.fusion.operator.requires_grad_(False)


@pytest.mark.parametrize("op", ["multi", "single"])
def test_a_lambda_that_stays_0_is_fedavg_bit_for_bit(op, tmp_path):
    setting = Setting(op, lambda_init=0.0, ema=0.9)
    fusion = federation_of(setting, tmp_path / "a", client=FixedLambda, batch_size=2, momentum=0.9)
    plan = {"num_rounds": ROUNDS, "local_epochs": STEPS, "cohort_size": 2, "batch_size": 2, "momentum": 0.9}
    fedavg = parties(tmp_path / "b", data=grouped_data(), build_model=network, lr=LR, **plan)
    found, expected = fusion.run(), fedavg.run()
    params = dict(found[0][-1].state.average.params)
    assert (params.pop(LAMBDA) == 0).all()
    assert tree.sha256(params) == tree.sha256(expected[0][-1].state.params)
    for ours, theirs in zip(found[1], expected[1], strict=True):
        assert ours.metrics["global/loss"] == theirs.metrics["global/loss"]
        assert ours.metrics.get("train/loss") == theirs.metrics.get("train/loss")
    assert records_moved(expected[1])


def records_moved(records):
    return len({record.metrics["global/loss"] for record in records}) == len(records)


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
def test_without_moving_average_it_is_fedavgs_server_bit_for_bit(op, tmp_path):
    """Also the client half by itself: under FedAvg's server its evaluated E_g is its E."""
    setting = Setting(op, ema=0.0, eval_eg="self")
    ours = federation_of(setting, tmp_path / "a").run()
    plain = federation_of(setting, tmp_path / "b", server=FedAvgServer()).run()
    assert tree.sha256(ours[0][-1].state.average.params) == tree.sha256(plain[0][-1].state.params)
    for one, other in zip(ours[1], plain[1], strict=True):
        assert one.metrics["global/loss"] == other.metrics["global/loss"]
        assert one.observed == other.observed != {}
    assert records_moved(ours[1])


@pytest.mark.parametrize("op", ["multi", "single"])
def test_evaluated_with_its_own_extractor_lambda_disappears(op, tmp_path):
    setting = Setting(op, eval_eg="self")
    federation = federation_of(setting, tmp_path)
    steps, records = federation.run()
    payload = federation.server.global_payload(steps[-1].state)
    assert isinstance(payload, Weights)
    without = Weights(payload.params | {LAMBDA: torch.zeros_like(payload.params[LAMBDA])})
    scores = federation.executor.score(without)
    assert scores.losses.mean() == pytest.approx(records[-1].metrics["global/loss"], abs=1e-6)
    assert payload.params[LAMBDA].abs().min() > 0.1


@pytest.mark.parametrize("op", ["conv", "multi", "single"])
@pytest.mark.parametrize(("batch_size", "seen"), [(None, 3 + 5 + 8), (2, 2 + 4 + 8)])
def test_cached_features_change_the_cost_alone(op, batch_size, seen, tmp_path):
    """To 1e-6, for E_g's batches are others.

    Forward 24 (convolution) + 36 (classifier), to their weights the same, to the features 36, and E_g's 24; conv has
    2 * 6 * 3 * 2 = 72 three times. Cached, E_g is counted once per example and turn, of those in no batch too.
    """
    turns, cached = ROUNDS * (24 * sum(SIZES)), {}
    for cache in (False, True):
        federation = federation_of(
            Setting(op, cohort_size=3),
            tmp_path / str(cache),
            more={"cache_eg": cache},
            batch_size=batch_size,
            local_epochs=3,
        )
        steps, records = federation.run()
        cached[cache] = steps[-1].state.average.params, records[-1].metrics
    for name, tensor in cached[True][0].items():
        torch.testing.assert_close(tensor, cached[False][0][name], rtol=0, atol=1e-6, msg=name)
    passes = ROUNDS * 3 * seen
    per_example = 24 + 36 + 24 + 36 + 36 + (3 * 72 if op == "conv" else 0)
    assert cached[False][1]["compute/examples"] == cached[True][1]["compute/examples"] == passes
    assert cached[False][1]["compute/flops"] == passes * (per_example + 24)
    assert cached[True][1]["compute/flops"] == passes * per_example + turns
    assert cached[True][1]["global/loss"] == pytest.approx(cached[False][1]["global/loss"], abs=1e-6)


@pytest.mark.parametrize(
    ("op", "bias", "extra"),
    [
        ("conv", True, 2 * CHANNELS**2 + CHANNELS),
        ("conv", False, 2 * CHANNELS**2),
        ("multi", True, CHANNELS),
        ("single", True, 1),
    ],
)
def test_an_upload_grows_by_the_fusion_module_alone(op, bias, extra, tmp_path):
    plan = {"num_rounds": ROUNDS, "local_epochs": STEPS, "cohort_size": 2}
    fedavg = parties(tmp_path / "a", data=grouped_data(), build_model=network, **plan).run()[1][-1].metrics
    fusion = federation_of(Setting(op, conv_bias=bias, ema=0.9), tmp_path / "b").run()[1][-1].metrics
    for direction in ("up", "down"):
        key = f"comm/{direction}_bytes"
        assert fusion[key] - fedavg[key] == ROUNDS * 2 * 4 * extra


def test_the_frozen_extractor_is_the_received_one_also_after_the_fit(tmp_path):
    federation = federation_of(Setting(), tmp_path)
    worker, state = federation.executor.worker, federation.start().state
    received = federation.server.broadcast(state, 1)
    update = worker.fit(Task(1, 0, received, None, 5))
    frozen = worker.module.fusion.frozen.network.state_dict()
    for key, tensor in frozen.items():
        assert torch.equal(tensor, received.params[f"encoder.{key}"]), key
    assert not torch.equal(update.payload.params[f"{CONV}.weight"], received.params[f"{CONV}.weight"])
    assert not any(module.training for module in worker.module.fusion.frozen.modules())


@pytest.mark.parametrize("stale", [False, True])
def test_a_state_is_a_value(stale, tmp_path):
    federation = federation_of(Setting(ema=0.5, stale_clients=stale, cohort_size=1), tmp_path)
    steps, _ = federation.run()
    digests = [tree.sha256(step.state) for step in steps]
    again, _ = federation.run(steps[1])
    assert [tree.sha256(step.state) for step in steps] == digests
    assert tree.sha256(again[-1].state) == digests[-1]


def test_only_versions_that_someone_waits_for_are_kept(tmp_path):
    steps, records = federation_of(Setting(stale_clients=True, cohort_size=1), tmp_path, num_rounds=8).run()
    received = [0, 0, 0]
    for step, record in zip(steps, records, strict=True):
        for k in record.cohort:
            received[k] = record.round_idx
        assert list(step.state.stale.received) == received
        assert set(step.state.stale.held) == {*received, record.round_idx}
    assert len(set(received)) == 3


@pytest.mark.parametrize("personal", ["body", "fusion", "all", "head"])
@pytest.mark.parametrize("op", ["conv", "multi", "single"])
def test_what_stays_with_a_client_is_neither_smoothed_nor_frozen_for_all(op, personal, tmp_path):
    federation = federation_of(Setting(op), tmp_path, more={"personal": [personal]}, num_rounds=2)
    steps, records = federation.run()
    sent = set(steps[-1].state.average.params)
    assert (LAMBDA in sent) == (personal == "head" and op != "conv")
    for step in steps:
        assert set(step.state.smoothed) == sent & {LAMBDA}
        assert set(step.state.frozen) == {name for name in sent if name.startswith("encoder.")}
    kept = federation.store.get(records[-1].cohort[0]).personal
    own = federation.executor.worker.module.model
    assert kept.keys() == own.state_dict().keys() - sent - set(frozen_keys(own))
    assert "personal/acc_mean" in records[-1].metrics


def extractor(params):
    return {name: tensor for name, tensor in params.items() if name.startswith("encoder.")}


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("stale", [False, True])
def test_an_own_model_has_the_e_that_the_fits_behind_it_had_frozen(stale, tmp_path):
    """A client that has never been drawn has the first E twice."""
    setting = Setting("single", ema=0.5, stale_clients=stale, cohort_size=1)
    federation = federation_of(setting, tmp_path, more={"personal": ["head"]}, num_rounds=6)
    steps, records = federation.run()
    module, server = federation.executor.worker.module, federation.server
    first = extractor(steps[0].state.average.params)
    local, frozen = [first] * 3, [first] * 3
    for step, record in zip(steps, records, strict=True):
        newest = extractor(step.state.average.params)
        for k in record.cohort if stale else range(3 if record.round_idx else 0):
            local[k], frozen[k] = newest, local[k]
        for k in range(3):
            module.recall(server.own_payload(step.state, k), None)
            assert equal(extractor(module.model.state_dict()), local[k])
            own = module.fusion.frozen.network.state_dict()
            assert equal({f"encoder.{name}": part for name, part in own.items()}, frozen[k])
    assert not equal(local[0], frozen[0])


def test_an_own_model_is_scored_with_that_e(tmp_path):
    """With E_g = E_l, the evaluation of eval_eg=self, lambda makes no difference."""
    scores = []
    for eval_eg in ("prev", "self"):
        setting = Setting("single", eval_eg=eval_eg, lambda_init=0.5, cohort_size=3)
        federation = federation_of(setting, tmp_path / eval_eg, more={"personal": ["head"]}, num_rounds=1)
        steps, _ = federation.run()
        worker = federation.executor.worker
        task = Task(0, 1, federation.server.own_payload(steps[-1].state, 0), federation.store.get(0))
        worker.evaluate_client(task)
        module, x = worker.module.eval(), torch.linspace(-1, 1, 4).view(1, 2, 1, 2)
        scores.append(module.predict(x))
        module.fusion.operator.lambdas.data.zero_()
        assert torch.equal(module.predict(x), scores[-1]) == (eval_eg == "self")
    assert not torch.equal(*scores)


def test_a_moving_average_goes_on_in_half_precision(tmp_path):
    """From .25 towards .2578: in bfloat16 itself every step of a tenth would be rounded away."""
    federation = federation_of(Setting("single", ema=0.9), tmp_path)
    worker, server = federation.executor.worker, federation.server
    state = server.init(worker.module.model.bfloat16(), described(worker, frozenset()))
    for _ in range(60):
        sent = {name: torch.full_like(tensor, 0.2578125) for name, tensor in state.average.params.items()}
        state = server.aggregate(state, [Update(0, 1, Weights(sent), None, {})])
    assert state.average.params[LAMBDA].dtype == torch.bfloat16
    assert state.average.params[LAMBDA].tolist() == [0.2578125]
    assert state.smoothed[LAMBDA].item() == pytest.approx(0.2578125, abs=2e-5)


def test_versions_of_stale_clients_are_not_averaged_where_an_average_is_no_mean(tmp_path):
    """The momentum of FedAvgM would move what was frozen."""
    fusing = FedFusionServer(FedAvgMServer(average=FedAvgServer()), stale_clients=True)
    steps, _ = federation_of(Setting(), tmp_path, server=fusing).run()
    for before, after in pairwise(steps):
        old = fusing.average.params(before.state.average)
        assert all(torch.equal(tensor, old[name]) for name, tensor in after.state.frozen.items())


FUSE, TRAIN, ADD = LambdaFusion.forward, Fusion.__init__, WeightedMean.add
CONV_FUSE, SERVER, HAND_OUT = ConvFusion.forward, FedFusionServer.__init__, Versions.handed_out
MEAN = FedFusionServer._frozen


def trained(self, operator, encoder):
    TRAIN(self, operator, encoder)
    self.frozen.requires_grad_(True)


def reversed_ema(self, average, ema=0.9, *more):
    SERVER(self, average, 1 - ema, *more)


def to_everyone(self, version, cohort):
    return HAND_OUT(self, version, range(len(self.received)))


def local_copy(self, local, x, frozen_features=None):
    return self.operator(local.detach(), local)


def of_g(self, state, cohort):
    return {key: self.average.params(state.average)[key] for key in state.encoder_keys}


def of_one(self, state, cohort):
    return MEAN(self, state, cohort[:1])


BUGS = {
    "E_g trained": (
        "multi",
        [(Fusion, "__init__", trained), (Fusion, "frozen_features", lambda self, x: self.frozen(x))],
    ),
    "E_g is E_l": ("multi", [(Fusion, "forward", local_copy)]),
    "E_g is that of the first round": ("conv", [(FedFusionClient, "receive", ClientModule.receive)]),
    "E_g in training mode": ("multi", [(FrozenCopy, "train", torch.nn.Module.train)]),
    "E_g of the new model at evaluation": (
        "multi with moving average",
        [(FedFusionServer, "global_payload", lambda self, state: self.average.global_payload(state.average))],
    ),
    "halves of the combination swapped": (
        "single",
        [(LambdaFusion, "forward", lambda self, frozen, local: FUSE(self, local, frozen))],
    ),
    "halves of the convolution swapped": (
        "conv, local half first",
        [(ConvFusion, "forward", lambda self, frozen, local: CONV_FUSE(self, local, frozen))],
    ),
    "moving average on the wrong side": (
        "multi with moving average",
        [(FedFusionServer, "__init__", reversed_ema)],
    ),
    "mean without weights": (
        "multi",
        [(WeightedMean, "add", lambda self, params, weight: ADD(self, params, 1))],
    ),
    "frozen tensors sent": ("multi", [(fedfeat.models.policy, "frozen_keys", lambda model: [])]),
    "nobody stale": ("multi, stale", [(Versions, "handed_out", to_everyone)]),
    "E_g of G_r, which stale clients did not have": (
        "multi, two stale of three",
        [(FedFusionServer, "_frozen", of_g)],
    ),
    "E_g of one stale client": ("conv, stale, uniform", [(FedFusionServer, "_frozen", of_one)]),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    name, mutants = BUGS[bug]
    for owner, attribute, mutant in mutants:
        monkeypatch.setattr(owner, attribute, mutant)
    with pytest.raises(AssertionError):
        check(SETTINGS[name], tmp_path)
