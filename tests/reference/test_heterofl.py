"""HeteroFL: its rounds by hand, FedAvg at full levels, what crosses the wire, and planted bugs."""

from functools import partial

import pytest
import torch
from float64_runs import assert_stacks
from grouped_rounds import STEPS
from harness import SIZES
from linear_rounds import goes_on
from width_rounds import SETTINGS, Setting, check, federation_of, networks_of

from fedfeat import tree
from fedfeat.algorithms import heterofl, static_norm
from fedfeat.algorithms.element_mean import ElementMean
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLServer
from fedfeat.client import ClientModule
from fedfeat.errors import ClientError
from fedfeat.models import widths
from fedfeat.models.flops import forward_flops, training_flops


@pytest.mark.parametrize("name", SETTINGS)
def test_rounds_by_hand(name, tmp_path):
    check(SETTINGS[name], tmp_path)


def last_params(folder, setting, **plan):
    shared = {"batch_size": 2, "precision": "32-true", "momentum": 0.9, "num_rounds": 3, "cohort_size": 2}
    return federation_of(setting, folder, **(shared | plan)).run()[0][-1].state.params


@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("rolling", [False, True])
def test_at_full_levels_it_is_fedavg_bit_for_bit(rolling, weighting, norm, tmp_path):
    """With all rows and the same softmax. Running statistics train nothing, and they are another matter."""
    setting = Setting((1.0,), rolling, weighting=weighting, output_rows="all", scope="all", norm=norm)
    networks = networks_of(setting)
    single = {"networks": None, "build_model": lambda: networks.build(None).float()}
    found = last_params(tmp_path / "a", setting, **single)
    plain = {"client": ClientModule, "server": FedAvgServer(weighting)}
    expected = last_params(tmp_path / "b", setting, **(single | plain))
    assert tree.sha256(found) == tree.sha256({key: expected[key] for key in found})
    assert any("running_mean" in key for key in expected.keys() - found.keys()) == (norm == "bn")


def test_numbers_that_nobody_holds_keep_their_value(tmp_path):
    """Alone, a client of level .1 trains one channel of each layer, and rows of its own classes."""
    federation = federation_of(Setting((0.1,), cohort_size=1), tmp_path)
    steps, records = federation.run()
    held = {"conv1": (1, 2, 1, 1), "conv2": (1, 1, 1, 1), "fc1": (1, 2), "fc2": (3, 1)}
    for before, after, record in zip(steps, steps[1:], records[1:], strict=False):
        for name, new in after.state.params.items():
            old, shape = before.state.params[name], held[name.split(".")[1]][: new.dim()]
            inside = torch.zeros_like(new, dtype=torch.bool)
            inside[tuple(slice(0, size) for size in shape)] = True
            if name.startswith("head.fc2"):
                present = federation.data.class_counts[record.cohort[0]] > 0
                inside &= torch.from_numpy(present).view(-1, *[1] * (new.dim() - 1))
            assert torch.equal(new[~inside], old[~inside]), name
            if name == "head.fc2.linear.bias" and int(present.sum()) > 1:
                assert not torch.equal(new[inside], old[inside])


def test_clients_receive_send_and_compute_their_part(tmp_path):
    """Of 6, 5 and 4 channels: 3 n + 6 of them 3, 3, 2 and 2, 2, 2, counted in numbers of 8 bytes."""
    federation = federation_of(Setting(), tmp_path)
    start = federation.start().state
    sent = [tree.num_bytes(federation.server.broadcast(start, k)) for k in range(3)]

    def numbers(a, b, c):
        return (2 * a + a) + (a * b + b) + (2 * b * c + c) + (3 * c + 3)

    expected = [8 * numbers(*counts) for counts in ((6, 5, 4), (3, 3, 2), (2, 2, 2))]
    assert sent == expected
    metrics = federation.run()[1][-1].metrics
    assert metrics["comm/up_bytes"] == metrics["comm/down_bytes"] == 3 * sum(sent)
    networks = federation.executor.worker.networks
    costs = [float(training_flops(networks.build(networks.key(k)))) for k in range(3)]
    assert costs[0] > costs[1] > costs[2]
    assert metrics["compute/flops"] == 3 * STEPS * sum(SIZES[k] * costs[k] for k in range(3))


def test_statistics_stay_at_the_server_which_pays_for_them(tmp_path):
    federation = federation_of(Setting(norm="bn"), tmp_path)
    steps, records = federation.run()
    state = steps[-1].state
    assert not state.params.keys() & state.statistics.keys()
    assert len(state.statistics) == 6
    payload = federation.server.broadcast(state, 1).params
    assert payload.keys() == state.params.keys()
    assert federation.server.global_payload(state).params.keys() == payload.keys() | state.statistics.keys()
    networks = federation.executor.worker.networks
    turns = sum(SIZES[k] * float(training_flops(networks.build(networks.key(k)))) for k in range(3))
    passes = sum(SIZES) * float(forward_flops(networks.build()))
    # Those of the first model were taken before the first round, and are counted with it.
    assert records[-1].metrics["compute/flops"] == pytest.approx(3 * STEPS * turns + 4 * passes)
    # A whole-network half that has running statistics of its own sends and averages them.
    averaged = federation_of(Setting(norm="bn"), tmp_path / "b", client=ClientModule)
    assert averaged.run()[0][-1].state.statistics == {}


def test_after_its_fit_a_client_is_scored_by_statistics_of_its_fit(tmp_path):
    """Whatever the module's last client has left there."""
    setting = Setting((1.0, 0.5, 0.5), norm="bn")
    scores = []
    for name, plan in (("a", {}), ("b", {"num_rounds": 1})):
        federation = federation_of(setting, tmp_path / name, evaluate_local=True, **plan)
        if name == "b":
            for k in (0, 1):
                for norm in static_norm.batch_norms(federation.executor.worker.module_of(k)):
                    norm.running_mean.fill_(7.0)
                    norm.num_batches_tracked.fill_(9)
        scores.append(federation.run()[1][1].metrics["local_pre_agg/acc_mean"])
        models = [federation.executor.worker.module_of(k) for k in (0, 1)]
        counted = [int(norm.num_batches_tracked) for m in models for norm in static_norm.batch_norms(m)]
        assert set(counted[2:]) == {STEPS}
    assert scores[0] == scores[1]


@pytest.mark.parametrize("setting", [Setting(dynamic=True, norm="bn"), Setting(rolling=True, momentum=0.5)])
def test_a_run_goes_on_from_its_middle(setting, tmp_path):
    setting = setting._replace(rounds=5, cohort_size=2)
    assert goes_on(partial(federation_of, setting), tmp_path / "cut", tmp_path / "whole")


STACKED = {
    "heterofl": ("algorithm=heterofl", "partition=quantity_skew", "scenario=stragglers"),
    "dynamic": ("algorithm=heterofl", "structure.dynamic=true", "structure.levels=[1.0,0.3]"),
    "fedrolex": ("algorithm=fedrolex", "structure.levels=[0.6,0.3]", "federation.cohort_size=3"),
    "group norm": (
        "algorithm=fedrolex",
        "model.norm=gn",
        "model.norm_groups=1",
        "structure.levels=[0.5,0.25]",
    ),
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path, caplog):
    """Clients of one level in the round are one fit."""
    assert_stacks(tmp_path, *STACKED[name], "federation.local_epochs=2", "federation.num_clients=6")
    assert "one after the other" not in caplog.text


HELD, MEAN, ADD = HeteroFLServer._held, ElementMean._mean, ElementMean.add


def without_zeros(self, key, old):
    """What nobody holds is averaged as 0."""
    mean = MEAN(self, key, torch.zeros_like(old))
    return mean if old.is_floating_point() else old


def over_everyone(self, key, old):
    """The sum over the number of clients that came, not of those who hold a number."""
    self._totals[key] = torch.full_like(self._totals[key], float(self._totals[key].max()))
    return MEAN(self, key, old)


def of_round_0(self, state, client_id):
    return HELD(self, state._replace(round_idx=0), client_id)


def everything_sent(self, state, update):
    return update.payload.params, self._held(state, update.client_id)


def rows_alone(params, where):
    """Rows are taken, columns are the first ones."""
    found = {}
    for key, tensor in params.items():
        index = where.get(key, ())
        sizes = [slice(None) if i is None else slice(len(i)) for i in index]
        found[key] = tensor[tuple(sizes)]
    return found


def at_odds(width, rate, start=0):
    return int(rate * width) or 1


BUGS = {
    "nothing kept": ("heterofl, one of three", ElementMean, "_mean", without_zeros),
    "mean over everyone": ("heterofl", ElementMean, "_mean", over_everyone),
    "windows that stay": ("fedrolex", FedRolexServer, "start", lambda self, round_idx: 0),
    "windows that run the other way": ("fedrolex", FedRolexServer, "start", lambda self, round_idx: -round_idx),
    "the levels of the first round": ("dynamic", HeteroFLServer, "_held", of_round_0),
    "the first columns are sent": ("fedrolex", heterofl, "part_of", rows_alone),
    "channels rounded down": ("heterofl", widths, "kept_channels", at_odds),
    "no scaler": ("heterofl", widths.Scaler, "__call__", lambda *_: None),
    "a scaler the wrong way round": ("heterofl", widths.Scaler, "__call__", lambda own, m, i, out: out * own.rate),
    "statistics of the first model": ("batch norm", HeteroFLServer, "_with_statistics", lambda self, state: state),
    "sizes ignored": ("by samples", ElementMean, "add", lambda self, own, at, weight: ADD(self, own, at, 1)),
    "rows of absent classes": ("heterofl", HeteroFLServer, "_contributed", everything_sent),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    setting, *patch = BUGS[bug]
    monkeypatch.setattr(*patch)
    # Where a client's part has another shape its turn fails.
    with pytest.raises((AssertionError, ClientError)):
        check(SETTINGS[setting], tmp_path)
