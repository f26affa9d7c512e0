"""FedDF: rounds by hand, what it is without steps, teachers and students of a pool, what is sent, planted bugs."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from float64_runs import assert_same, steps_of
from float64_runs import run as run_config
from harness import LR, assert_close, examples_of, linear, network_of, params_of, parties, zeros
from linear_rounds import Steps, goes_on, mean
from prototype_rounds import two_layers

from fedfeat import tree
from fedfeat.algorithms import distillation, feddf
from fedfeat.algorithms.distillation import Distillation, Ensemble, batches, distil, divergence
from fedfeat.algorithms.fedavg import FedAvgServer
from fedfeat.algorithms.feddf import FedDFServer
from fedfeat.algorithms.fedopt import FedAvgMServer
from fedfeat.algorithms.fedrolex import FedRolexServer
from fedfeat.algorithms.heterofl import HeteroFLServer
from fedfeat.errors import ConfigError, UserError
from fedfeat.executors.stacked.fit import StackedClients
from fedfeat.rounds.loop import run_rounds
from fedfeat.seeding import derive_seed

STEPS = 3
DOUBLE = {"precision": "64-true"}
SERVER = {
    "source": "train_pool", "steps": 7, "batch_size": 6, "lr": 0.2, "temperature": 2.0, "look_every": 2,
    "patience": None, "keep": "last",
}  # fmt: skip


def federation_of(folder, *, server=None, **plan):
    arguments = {"num_rounds": 4, "local_epochs": STEPS, "cohort_size": 2, "lr": LR, "momentum": 0.5}
    server = server or FedDFServer(FedAvgServer(), **SERVER)
    return parties(folder, server=server, **(arguments | plan))


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def distilled(
    start, teachers, x, round_idx, *, steps, batch_size, lr, temperature, look_every, keep, probabilities
):
    """Adam in NumPy on the divergence of softmax regressions, in the order of the round's address."""
    logits = [x @ w.T + b for w, b in teachers]
    targets = softmax(np.mean(logits, 0) / temperature)
    if probabilities:
        targets = np.mean([softmax(z / temperature) for z in logits], 0)
    order = torch.Generator().manual_seed(derive_seed(0, "distillation", round_idx))
    flat, size = np.concatenate([start[0], start[1][:, None]], 1), min(batch_size, len(x))
    m, v, chosen = np.zeros_like(flat), np.zeros_like(flat), []
    losses, best = [], (np.inf, flat)
    for t in range(1, steps + 1):
        if len(chosen) < size:
            chosen = torch.randperm(len(x), generator=order).tolist()
        now, chosen = chosen[:size], chosen[size:]
        inputs, p = np.concatenate([x[now], np.ones((size, 1))], 1), targets[now]
        q = softmax(inputs @ flat.T / temperature)
        losses.append((p * np.log(p / q)).sum() / size)
        g = (q - p).T @ inputs / temperature / size
        g *= min(1.0, 5 / (np.sqrt((g**2).sum()) + 1e-6))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        rate = lr * (1 + np.cos(np.pi * (t - 1) / steps)) / 2
        flat = flat - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        if t % look_every == 0:
            best = min(best, (np.mean(losses), flat), key=lambda pair: pair[0])
            losses = []
    flat = flat if keep == "last" else best[1]
    return flat[:, :-1], flat[:, -1]


def check(folder, *, probabilities=False, weighting="samples", **changes):
    """Compare the student with a computation by hand after every round."""
    how = SERVER | changes
    kind = "probabilities" if probabilities else "logits"
    server = FedDFServer(FedAvgServer(weighting), **how, teacher_mean=kind)
    federation = federation_of(folder, server=server, **DOUBLE)
    data, current = federation.data, zeros()
    rest = {name: how[name] for name in ("steps", "batch_size", "lr", "temperature", "look_every", "keep")}
    for step, record in federation.rounds():
        if record.round_idx:
            ends = [Steps(data, k, current, STEPS, momentum=0.5).end for k in record.cohort]
            sizes = [len(examples_of(data, k)[1]) if weighting == "samples" else 1 for k in record.cohort]
            x = data.shared_examples("train_pool", 10**6, 0, record.round_idx - 1)[0].double().numpy()
            assert len(x) == 16
            start = mean(ends, sizes)
            current = distilled(start, ends, x, record.round_idx - 1, probabilities=probabilities, **rest)
        (student,) = step.state.students.values()
        assert_close(params_of(step._replace(state=student)), current, 1e-12)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"probabilities": True}, {"batch_size": 100, "steps": 4}, {"keep": "best", "lr": 2.0, "steps": 8},
        {"weighting": "uniform", "temperature": 0.5, "probabilities": True},
    ],
    ids=["plain", "probabilities", "all", "best", "uniform"],
)  # fmt: skip
def test_rounds_of_some_of_unequal_clients_by_hand(changes, tmp_path):
    check(tmp_path, **changes)


PLAN = {"build_model": partial(two_layers, 0.3), "batch_size": 2, "local_epochs": 2, "num_rounds": 3}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_without_steps_it_is_fedavg_bit_for_bit(weighting, tmp_path):
    server = FedDFServer(FedAvgServer(weighting), **(SERVER | {"steps": 0}))
    steps, records = federation_of(tmp_path / "a", server=server, **PLAN).run()
    plain, others = federation_of(tmp_path / "b", server=FedAvgServer(weighting), **PLAN).run()
    for mine, its in zip(steps, plain, strict=True):
        assert tree.sha256(mine.state.students[""]) == tree.sha256(its.state)
    for mine, its in zip(records, others, strict=True):
        assert {k: v for k, v in mine.metrics.items() if not k.startswith("time/")} == {
            k: v for k, v in its.metrics.items() if not k.startswith("time/")
        }


def test_of_a_configuration_too(tmp_path):
    words = ("federation.cohort_size=2", "algorithm.public_share=0.2")
    mine = run_config(tmp_path / "a", "algorithm=feddf", "algorithm.server.steps=0", *words)
    assert_same(mine, run_config(tmp_path / "b", "algorithm=fedavg", *words), 0.0)


def test_another_average_stands_in_for_fedavg(tmp_path):
    words = ("federation.cohort_size=2", "algorithm.public_share=0.2", "federation.num_rounds=3")
    around = (
        "algorithm=feddf",
        "algorithm.server.steps=0",
        "algorithm/server@algorithm.server.average=fedavgm",
    )
    momentum = "algorithm/server@algorithm.server.average.average=fedavg"
    mine = run_config(tmp_path / "a", *around, momentum, *words)
    its = run_config(tmp_path / "b", "algorithm=fedavgm", *words)
    assert_same(mine, its, 0.0)
    plain = run_config(tmp_path / "c", "algorithm=fedavg", *words)
    assert any(not torch.equal(one, other) for one, other in zip(its[0], plain[0], strict=False))


@pytest.mark.parametrize("average", [HeteroFLServer(), FedAvgMServer(average=FedRolexServer(), lr=1.0)])
def test_an_average_of_parts_is_refused(average):
    rule = r"^algorithm\.server\.average must average whole networks for FedDF"
    with pytest.raises(ConfigError, match=rule):
        FedDFServer(average)


def test_one_teacher_that_is_the_student_gives_no_gradient():
    """The loss is 0 and every gradient below 1e-16, whatever the temperature and the mean."""
    student, inputs = (
        two_layers().double(),
        torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).double(),
    )
    for temperature in (1.0, 3.0):
        for kind in ("logits", "probabilities"):
            ensemble = Ensemble(inputs, lambda x: x, temperature, kind)
            ensemble.add(student)
            loss = divergence(student(inputs), ensemble.probabilities(), temperature)
            slopes = torch.autograd.grad(loss, list(student.parameters()))
            assert abs(loss.item()) < 1e-15
            assert max(float(slope.abs().max()) for slope in slopes) < 1e-15


def normed():
    """With dropout and batch norm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        layers = torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 3)
    return network_of(*layers)


def test_teachers_are_in_eval_mode_and_stay_as_they_are():
    teacher, inputs = normed().train(), torch.randn(20, 4)
    before = tree.sha256(dict(teacher.state_dict()))
    ensemble = Ensemble(inputs, lambda x: x, 1.0, "logits")
    ensemble.add(teacher)
    assert tree.sha256(dict(teacher.state_dict())) == before
    assert torch.equal(ensemble.probabilities(), teacher.eval()(inputs).softmax(1))


def test_students_train_in_training_mode_and_statistics_move(tmp_path):
    server = FedDFServer(FedAvgServer(), **(SERVER | {"steps": 3}))
    steps = federation_of(tmp_path, server=server, build_model=normed, num_rounds=1).run()[0]
    params = steps[-1].state.students[""].params
    assert params["head.all.1.num_batches_tracked"] == STEPS + 3


def course(**changes):
    found = {
        "steps": 20,
        "batch_size": 4,
        "lr": 0.1,
        "temperature": 1.0,
        "every": 2,
        "patience": 4,
        "keep": "best",
    }
    return Distillation(**(found | changes))


@pytest.mark.parametrize(
    ("patience", "keep", "made", "at"),
    [
        (4, "best", 10, 6),
        (4, "last", 10, 10),
        (2, "best", 4, 2),
        (None, "best", 20, 14),
        (None, "last", 20, 20),
    ],
)
def test_it_stops_where_nothing_gets_better(patience, keep, made, at):
    """Scores at steps 2, 4, ...; an equal one is no better."""
    scores = iter([0.5, 0.4, 0.6, 0.6, 0.1, 0.2, 0.9, 0.3, 0.3, 0.3])
    student = linear().double()
    inputs, targets = torch.randn(10, 4).double(), torch.randn(10, 3).double().softmax(1)
    seen = []

    def score():
        seen.append(tree.sha256(dict(student.state_dict())))
        return next(scores)

    order = torch.Generator().manual_seed(0)
    found = distil(
        student, lambda own: student(inputs[own]), targets, course(patience=patience, keep=keep), order, score
    )
    assert found == made == 2 * len(seen)
    assert tree.sha256(dict(student.state_dict())) == seen[at // 2 - 1]


def test_pieces_of_a_pass_are_equally_large_and_of_every_pass_anew():
    found = [
        next_.tolist()
        for next_, _ in zip(batches(7, 3, torch.Generator().manual_seed(0)), range(6), strict=False)
    ]
    assert {len(piece) for piece in found} == {3}
    passes = [found[i] + found[i + 1] for i in (0, 2, 4)]
    assert all(len(set(one)) == 6 for one in passes)
    assert len(set(map(tuple, passes))) == 3
    assert [sorted(one) for one, _ in zip(batches(2, 3, torch.Generator()), range(2), strict=False)] == [
        [0, 1]
    ] * 2


VALIDATED = ("algorithm=feddf", "partition.val_fraction=0.3", "algorithm.server.watch=validation")


def test_what_is_watched_on_validation_examples_is_the_best_there(tmp_path):
    """At a rate that ruins it a student that is looked at each step is kept from its first steps."""
    words = ("algorithm.server.steps=12", "algorithm.server.look_every=1", "federation.num_rounds=2")
    experiment, steps = steps_of(tmp_path / "a", *VALIDATED, *words, "algorithm.server.lr=1")
    found = steps[-1][1].metrics["val/acc"]
    ruined = steps_of(
        tmp_path / "b", *VALIDATED, *words, "algorithm.server.lr=1", "algorithm.server.keep=last"
    )
    assert found > ruined[1][-1][1].metrics["val/acc"]
    assert experiment.server.course.keep == "best"


def test_no_input_is_one_that_is_tested_on(tmp_path):
    experiment, _ = steps_of(
        tmp_path, "algorithm=feddf", "algorithm.server.steps=1", "federation.num_rounds=1"
    )
    data = experiment.data
    public = {row.tobytes() for row in experiment.server.site.examples("public", 10**6, 0)[0].numpy()}
    assert len(public) == 20
    for examples in (data.dataset.test, data.dataset.train):
        assert not public & {row.tobytes() for row in examples.inputs.numpy()}


def test_messages_are_those_of_fedavg(tmp_path):
    """15 numbers of 4 bytes in both directions."""
    records = federation_of(tmp_path).run()[1]
    for record in records:
        ways = [record.metrics[f"comm/{way}_bytes"] for way in ("up", "down")]
        assert ways == [record.round_idx * 2 * 15 * 4] * 2
    assert federation_of(tmp_path / "b").server.payload_type is FedAvgServer.payload_type


def test_what_the_server_computes_is_counted(tmp_path):
    """12 products: 2 teachers of 16 inputs, 7 steps of 6 inputs; the products of a step are made twice."""
    flops = []
    for steps in (0, 7):
        server = FedDFServer(FedAvgServer(), **(SERVER | {"steps": steps}))
        federation = federation_of(tmp_path / str(steps), server=server, num_rounds=1)
        flops.append(federation.run()[1][-1].metrics["compute/flops"])
    assert flops[1] - flops[0] == 2 * 12 * (2 * 16 + 7 * 6 * 2)


def test_a_round_without_an_update_distils_nothing(tmp_path):
    federation = federation_of(tmp_path)
    state = federation.run()[0][-1].state
    before = tree.sha256(state)
    found = federation.server.aggregate(state, iter([]))
    assert found.round_idx == state.round_idx + 1
    assert tree.sha256(found.students) == tree.sha256(state.students)
    assert tree.sha256(state) == before


def test_a_run_goes_on_from_its_middle(tmp_path):
    assert goes_on(partial(federation_of, **PLAN), tmp_path / "cut", tmp_path / "whole")


POOL = (
    "algorithm=feddf", "pool=hetero_cnn", "pool.names=[deep,wide,deep,wide]",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6],dropout:0.3}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[16]}",
    "partition=quantity_skew", "partition.min_size=5",
)  # fmt: skip


def noted(monkeypatch):
    """Note each round's updates, and the targets that its students are fitted to."""
    rounds, targets = [], []
    aggregate, fit = FedDFServer.aggregate, distillation.distil

    def noting(self, state, updates):
        rounds.append([])
        return aggregate(self, state, ((rounds[-1].append(update), update)[1] for update in updates))

    def fitted(student, said, found, *rest):
        targets.append(found)
        return fit(student, said, found, *rest)

    monkeypatch.setattr(FedDFServer, "aggregate", noting)
    monkeypatch.setattr(feddf, "distil", fitted)
    return rounds, targets


def test_students_of_a_pool_are_means_of_their_own_and_learn_from_all(tmp_path, monkeypatch):
    rounds, targets = noted(monkeypatch)
    words = (*POOL, "algorithm.server.steps=1", "algorithm.server.lr=1e-300", "federation.num_rounds=1")
    experiment, steps = steps_of(tmp_path, *words)
    networks, state = experiment.executor.worker.networks, steps[-1][0].state
    assert set(state.students) == {"deep", "wide"}
    teachers = []
    for update in rounds[0]:
        teachers.append(networks.build(networks.key(update.client_id)).double())
        teachers[-1].load_state_dict(update.payload.params)
    assert len(teachers) == 4
    inputs = experiment.data.plain(experiment.server.site.examples("public", 10**6, 0)[0])
    expected = torch.stack([teacher.eval()(inputs) for teacher in teachers]).mean(0).softmax(1)
    for found in targets:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert len(targets) == 2
    for name, student in state.students.items():
        own = [update for update in rounds[0] if networks.key(update.client_id) == name]
        assert len(own) == 2
        total = sum(update.num_examples for update in own)
        for key, tensor in student.params.items():
            hand = sum(update.num_examples / total * update.payload.params[key] for update in own)
            torch.testing.assert_close(tensor, hand, rtol=0, atol=1e-12)
    for k in range(4):
        assert experiment.server.broadcast(state, k).params is state.students[networks.key(k)].params
    assert experiment.server.global_payload(state) is None
    assert experiment.server.newcomer_payload(state) is None
    labels, metrics = experiment.data.dataset.test.labels, steps[-1][1].metrics
    own = []
    for name, student in state.students.items():
        network = networks.build(name).double().eval()
        network.load_state_dict(student.params)
        right = (
            network(experiment.data.plain(experiment.data.dataset.test.inputs)).argmax(1) == labels
        ).double()
        assert metrics[f"global/{name}_acc"] == pytest.approx(right.mean().item())
        own += [experiment.data.test_means(right.numpy())[k] for k in range(4) if networks.key(k) == name]
    assert metrics["personal/acc_mean"] == pytest.approx(sum(own) / 4)
    assert "global/acc" not in metrics


def test_a_pool_goes_on_from_its_middle(tmp_path):
    experiment, steps = steps_of(tmp_path, *POOL, "algorithm.server.steps=4", "federation.num_rounds=4")
    stored = tree.unflatten(*tree.flatten(steps[2][0].state))
    parts = (experiment.plan, experiment.server, experiment.executor, experiment.data, experiment.store)
    *_, (last, record) = run_rounds(*parts, steps[2][0]._replace(state=stored))
    assert tree.sha256(last.state) == tree.sha256(steps[-1][0].state)
    assert record.metrics["global/wide_loss"] == steps[-1][1].metrics["global/wide_loss"]


def test_an_architecture_without_a_participant_stays_as_it_is(tmp_path, monkeypatch):
    rounds, _ = noted(monkeypatch)
    words = (*POOL, "algorithm.server.steps=3", "federation.cohort_size=1", "federation.num_rounds=5")
    experiment, steps = steps_of(tmp_path, *words)
    networks, seen = experiment.executor.worker.networks, set()
    for (before, _), (after, record) in itertools.pairwise(steps):
        (trained,) = {networks.key(k) for k in record.cohort}
        seen.add(trained)
        for name in ("deep", "wide"):
            same = tree.sha256(before.state.students[name]) == tree.sha256(after.state.students[name])
            assert same == (name != trained)
    assert seen == {"deep", "wide"}
    assert len(rounds) == 5


STACKED = {
    "everyone": ("partition=quantity_skew", "federation.evaluate_local=true"),
    "few": ("federation.cohort_size=2", "scenario=stragglers", "algorithm.server.teacher_mean=probabilities"),
    "pool": POOL,
}


@pytest.mark.parametrize("name", STACKED)
def test_whole_runs_of_stacked_clients_are_those_of_serial(name, tmp_path, monkeypatch):
    fits, fit = [], StackedClients.fit
    monkeypatch.setattr(StackedClients, "fit", lambda self, *how: (fits.append(self), fit(self, *how))[1])
    options = ("algorithm=feddf", "algorithm.server.steps=20", *STACKED[name])
    expected = run_config(tmp_path / "serial", *options)
    assert not fits
    assert_same(run_config(tmp_path / "stacked", *options, "executor=vectorized"), expected, 1e-9)
    assert fits


@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        (["algorithm.public_share=null"], ConfigError, "server.source must be another without a public data"),
        (["algorithm.server.source=heldout"], ConfigError, "server.source must be another where partition.val"),
        (["algorithm.server.source=test_unlabelled"], ConfigError, "server.source must be one of public, held"),
        (["algorithm.server.watch=validation"], ConfigError, "server.watch must be loss where partition.val"),
        (
            [*VALIDATED[1:], "algorithm.server.source=heldout"],
            ConfigError, "algorithm.server.source must be another where watch is validation",
        ),
        (["partition=permuted"], ConfigError, "partition must be another for algorithm=feddf"),
        (["structure=trimmed"], ConfigError, "structure must be none for FedDF"),
        (["algorithm.client.personal=[head]"], UserError, r"algorithm.client.personal must be \[\] for FedDFServer"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(words, error, sentence, tmp_path):
    with pytest.raises(error, match=sentence):
        steps_of(tmp_path, "algorithm=feddf", *words)


ADD, FIT, DIVERGENCE = Ensemble.add, distillation.distil, distillation.divergence


def backwards(self, teacher):
    ADD(self, teacher)
    self.size = 1


BUGS = {
    "the sum of the teachers for their mean": (Ensemble, "add", backwards),
    "the student learns to differ": (distillation, "divergence", lambda *args: -DIVERGENCE(*args)),
    "no temperature for the student": (
        distillation, "divergence", lambda logits, targets, temperature: DIVERGENCE(logits, targets, 1.0)
    ),
    "the other divergence": (
        distillation, "divergence",
        lambda logits, p, T: DIVERGENCE(p.log(), (logits / T).softmax(1), 1.0),
    ),
    "the student starts from the last teacher": (
        FedDFServer, "_averaged",
        lambda self, state, updates: {
            name: own._replace(params=list(updates)[-1].payload.params) for name, own in state.students.items()
        },
    ),
    "the same inputs in every round": (
        feddf, "derive_seed", lambda seed, purpose, round_idx: derive_seed(seed, purpose, 0)
    ),
    "no clipping": (distillation, "_CLIP", 1e-3),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_would_be_noticed(bug, tmp_path, monkeypatch):
    monkeypatch.setattr(*BUGS[bug])
    with pytest.raises(AssertionError):
        check(tmp_path)


def test_a_student_of_half_precision_is_distilled_in_single(tmp_path):
    """Adam divides by the root of second moments, which float16 has as zeros."""
    words = ["trainer.precision=16-true", "federation.num_rounds=2"]
    _, steps = steps_of(tmp_path, "algorithm=feddf", *words)
    params = steps[-1][0].state.students[""].params
    assert {tensor.dtype for tensor in params.values() if tensor.is_floating_point()} == {torch.float16}
    assert all(bool(tensor.isfinite().all()) for tensor in params.values())
