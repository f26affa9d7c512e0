"""Clients that are held out of a run and join it afterwards: ``federation.held_out`` and `new_client`."""

import csv
import json
import math
import re
import shlex
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import yaml
from refusals import digest

from fedfeat.algorithms.fedfusion import FedFusionClient, FusedModel
from fedfeat.commands import joined
from fedfeat.commands import joining as new_client
from fedfeat.commands.reopen import reopen
from fedfeat.config.search_path import override_of
from fedfeat.data import digits
from fedfeat.errors import ConfigError

ROUNDS, CLIENTS, EPOCHS = 2, 4, 3
HELD_OUT = CLIENTS - 1
FEDERATION = (
    "data=digits", "data.loader.num_train=320", "data.loader.num_test=120", "partition=n_classes",
    "partition.classes_per_client=6", "model=digits_cnn",
    "federation.batch_size=20", "federation.local_epochs=1", f"federation.num_rounds={ROUNDS}",
    f"federation.num_clients={CLIENTS}", "trainer=cpu", "optimizer.lr=0.05",
)  # fmt: skip
METHODS = ("fedavg", "fedfusion")
SKEWED = ("partition.classes_per_client=3",)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def run(cli, kept):
    """Give a finished run of a method with the last client held out; made once, never changed."""

    def make(method, *overrides, name=None):
        path = kept / (name or method)
        if not path.exists():
            arguments = (f"algorithm={method}", "federation.held_out=1", *overrides, f"hydra.run.dir={path}")
            outcome = cli(*FEDERATION, *arguments)
            assert outcome.code == 0, outcome.stderr
        return path

    return make


@pytest.fixture
def command(console):
    """Run the script; give exit code, stdout and stderr."""
    return partial(console, new_client.main)


def sha256(run_dir):
    return json.loads((run_dir / "summary.json").read_text())["weights_sha256"]


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def replaced(monkeypatch, indices):
    """Black out training images wherever the digits are loaded."""
    original = digits.digits

    def changed(*arguments, **keywords):
        dataset = original(*arguments, **keywords)
        inputs = dataset.train.inputs.clone()
        inputs[torch.from_numpy(indices)] = 0
        return replace(dataset, train=replace(dataset.train, inputs=inputs))

    monkeypatch.setattr(digits, "digits", changed)


@pytest.mark.parametrize("method", METHODS)
def test_data_of_the_client_that_is_held_out_never_enter_training(method, run, tmp_path, monkeypatch):
    first = run(method)
    whole = reopen(first)[0].data.whole
    replaced(monkeypatch, whole.split.train.of(HELD_OUT))
    assert sha256(run(method, name=f"{method}_replaced")) == sha256(first)


def test_data_of_a_client_that_takes_part_do_enter_training(run, monkeypatch):
    """The control of the test before: the same change is seen where it is one of a participant."""
    first = run("fedavg")
    replaced(monkeypatch, reopen(first)[0].data.whole.split.train.of(0))
    assert sha256(run("fedavg", name="fedavg_other")) != sha256(first)


def test_who_takes_part(run):
    path = run(
        "fedavg", "federation.num_clients=6", "federation.held_out=2", "federation.fraction=0.5", name="half"
    )
    experiment, _ = reopen(path)
    plan = experiment.plan
    assert (plan.num_clients, plan.cohort_size) == (4, 2)  # half of the four that are left, not of six
    assert {row["client_id"] for row in rows(path / "clients.csv")} == {"0", "1", "2", "3"}
    assert (experiment.data.num_clients, experiment.data.whole.num_clients) == (4, 6)


@pytest.mark.parametrize("method", METHODS)
def test_the_start_is_the_servers_model_on_that_client(method, run):
    course = new_client.let_join(run(method), EPOCHS)[HELD_OUT]
    assert course.accuracies.shape == course.losses.shape == (EPOCHS + 1,)
    experiment, checkpoint = reopen(run(method))
    payload = experiment.server.global_payload(checkpoint.server_state)
    assert isinstance(payload, FusedModel) == (method == "fedfusion")
    model = experiment.executor.worker.module.model
    model.load_state_dict(payload.params, strict=method == "fedavg")
    if method == "fedfusion":
        model.fusion.frozen.fill(model.encoder)
    dataset, whole = experiment.data.dataset, experiment.data.whole
    chosen = whole.test_indices(HELD_OUT)
    assert 0 < len(chosen) < whole.num_test  # the classes that it holds
    x = (dataset.test.inputs[chosen] / 255 - dataset.mean[0]) / dataset.std[0]
    with torch.no_grad():
        logits = model.eval()(x)
    labels = dataset.test.labels[chosen]
    assert course.accuracies[0] == pytest.approx(
        (logits.argmax(1) == labels).double().mean().item(), abs=1e-9
    )
    assert course.losses[0] == pytest.approx(
        torch.nn.functional.cross_entropy(logits, labels).item(), abs=1e-5
    )


def test_scores_are_those_of_fits_of_so_many_epochs(run):
    """A fit of two epochs passes through the same models as one of three; nothing but training moves them."""
    long, short = (new_client.let_join(run("fedavg"), epochs)[HELD_OUT] for epochs in (EPOCHS, 2))
    assert short.losses.tolist() == long.losses[:3].tolist()
    assert len(set(long.losses)) == EPOCHS + 1
    slow = new_client.let_join(run("fedavg"), 1, lr=1e-9)[HELD_OUT]
    assert slow.losses[1] == pytest.approx(slow.losses[0], abs=1e-5)
    assert abs(long.losses[1] - long.losses[0]) > 1e-3
    same = new_client.let_join(run("fedavg"), 1, lr=0.05)[HELD_OUT]
    assert same.losses.tolist() == long.losses[:2].tolist()


def test_the_global_extractor_stays_the_received_one(run, monkeypatch):
    received, frozen, moved = [], [], []
    receive, training_step = FedFusionClient.receive, FedFusionClient.training_step

    def copied(tensors):
        return {key: tensor.clone() for key, tensor in tensors.items()}

    def watched_receive(self, payload, memory):
        received.append((type(payload).__name__, copied(payload.params)))
        receive(self, payload, memory)

    def watched_step(self, batch, batch_idx):
        frozen.append(copied(self.fusion.frozen.network.state_dict()))
        moved.append(copied(self.model.encoder.state_dict()))
        return training_step(self, batch, batch_idx)

    monkeypatch.setattr(FedFusionClient, "receive", watched_receive)
    monkeypatch.setattr(FedFusionClient, "training_step", watched_step)
    new_client.let_join(run("fedfusion"), EPOCHS)
    num_examples = reopen(run("fedfusion"))[0].data.whole.num_examples(HELD_OUT)
    ((kind, params),) = received
    assert kind == "Weights"
    assert len(frozen) == EPOCHS * math.ceil(num_examples / 20)
    for tensors in frozen:
        assert all(torch.equal(tensor, params[f"encoder.{key}"]) for key, tensor in tensors.items())
    assert any(not torch.equal(tensor, params[f"encoder.{key}"]) for key, tensor in moved[-1].items())


def test_the_command_writes_what_it_prints(run, command, tmp_path):
    runs = [run(method) for method in METHODS]
    before = [digest(path) for path in runs]
    out = tmp_path / "out"
    code, text, err = command(*runs, "--epochs", EPOCHS, "--share", 0.9, "--out", out)
    assert code == 0, err
    assert [digest(path) for path in runs] == before
    assert (out / "new_client.png").read_bytes().startswith(b"\x89PNG")
    table = rows(out / "new_client.csv")
    labels = list(dict.fromkeys(row["run"] for row in table))
    assert all(method in label for method, label in zip(METHODS, labels, strict=True))
    assert [(row["run"], row["client"], row["epoch"]) for row in table] == [
        (label, str(HELD_OUT), str(epoch)) for label in labels for epoch in range(EPOCHS + 1)
    ]
    head, line, *body, first, second = text.splitlines()
    assert head == "| run | start accuracy | best accuracy | epochs to 0.9 of best |"
    assert line == "| --- | --- | --- | --- |"
    assert [first, second] == [str(out / name) for name in ("new_client.csv", "new_client.png")]
    expected = []
    for label in labels:
        accuracies = [float(row["accuracy"]) for row in table if row["run"] == label]
        reached = next(epoch for epoch, value in enumerate(accuracies) if value >= 0.9 * max(accuracies))
        expected.append(f"| {label} | {accuracies[0]:.4f} | {max(accuracies):.4f} | {reached} |")
    assert body == expected


def test_without_out_the_first_runs_figures_get_two_files(run, command, tmp_path):
    path = shutil.copytree(run("fedavg"), tmp_path / "run")
    before = digest(path)
    again = shutil.copytree(path, tmp_path / "again")
    assert command(path, again, path, "--epochs", 1)[0] == 0
    after = digest(path)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before.keys() == {"figures/new_client.csv", "figures/new_client.png"}
    labels = dict.fromkeys(row["run"] for row in rows(path / "figures" / "new_client.csv"))
    assert [label.rpartition(" ")[2] for label in labels] == ["(1)", "(2)"]


@pytest.mark.slow
def test_one_command_runs_the_arms_and_averages_seeds(command, kept, tmp_path, monkeypatch):
    """Two seeds of two arms, from a folder that does not exist yet."""
    monkeypatch.setenv("FEDFEAT_ROOT", str(tmp_path))
    sweep = tmp_path / "swéep, two"
    arms = (
        "algorithm=fedavg,fedfusion",
        "seed=0,1",
        "federation.held_out=1",
        override_of("hydra.sweep.dir", str(sweep)),
    )
    code, text, err = command("--epochs", EPOCHS, "--sweep", *FEDERATION, *arms)
    assert code == 0, err
    table = rows(sweep / "figures" / "new_client.csv")
    assert len({row["run"] for row in table}) == 4
    body = [line.split(" | ") for line in text.splitlines() if "+-" in line]
    assert len(body) == 2
    for method, line in zip(METHODS, body, strict=True):
        assert line[0].endswith(method)
        starts = [
            float(r["accuracy"]) for r in table if r["epoch"] == "0" and r["run"].startswith(f"{method},")
        ]
        assert line[1] == f"{np.mean(starts):.4f} +- {np.std(starts, ddof=1):.4f}"
    again = command(sweep, "--epochs", EPOCHS, "--out", tmp_path / "again")
    assert again[0] == 0
    assert again[1].splitlines()[:4] == [line for line in text.splitlines() if line.startswith("| ")][:4]


def test_a_sweep_that_fails_and_no_run_at_all_are_refused(command):
    assert command()[2] == "new_client: DIR must be given, or --sweep in its place, but it is [].\n"
    code, _, err = command("--sweep", "algorithm=nothing")
    assert code == 2
    assert err.splitlines()[-1].startswith("new_client: --sweep must end well, but fedfeat has ended")


@pytest.mark.parametrize(
    ("accuracies", "share", "epochs"),
    [
        ([0.5, 0.7, 0.9, 0.8], 1.0, 2),
        ([0.5, 0.7, 0.9, 0.8], 0.75, 1),  # 0.675
        ([0.5, 0.7, 0.9, 0.95], 0.99, 3),
        ([0.95, 0.2, 0.95], 0.99, 0),  # there before training
        ([0.0, 0.0], 0.99, 0),
    ],
)
def test_epochs_to_a_share_of_the_best(accuracies, share, epochs):
    assert joined.epochs_to_share(np.array(accuracies), share) == epochs


def test_the_table_has_means_over_new_clients():
    """Client 3 needs one epoch for 0.9 of 0.8, client 4 two for 0.9 of 1.0."""
    losses = np.ones(3)
    clients = {
        3: joined.Learned(np.array([0.2, 0.75, 0.8]), losses),
        4: joined.Learned(np.array([0.4, 0.6, 1.0]), losses),
    }
    assert joined.summary({"x": [clients]}, 0.9)[1] == ["x", "0.3000", "0.9000", "1.5"]
    (axes,) = joined.figure({"x": [clients]}, 0.9).axes
    curve, mark = axes.lines
    assert curve.get_ydata() == pytest.approx([0.3, 0.675, 0.9])
    assert (mark.get_xdata()[0], mark.get_ydata()[0]) == (1.5, pytest.approx((0.675 + 0.9) / 2))


@pytest.mark.parametrize(
    ("method", "overrides"),
    [
        ("local", ()),
        ("centralized", ()),
        ("fedavg", ("algorithm.client.personal=[head]",)),
        ("fedfusion", ("algorithm.client.personal=[head]", "algorithm.server.stale_clients=true")),
        ("psi_net", SKEWED),
    ],
)
def test_every_method_has_something_to_join(method, overrides, run):
    """What arrives is the server's shared tensors; all else is the common initial model's."""
    path = run(method, *overrides, name=f"{method}_{len(overrides)}")
    experiment, checkpoint = reopen(path)
    model = experiment.executor.worker.module.model
    initial = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    payload = experiment.server.newcomer_payload(checkpoint.server_state)
    assert payload.params.keys() == set(experiment.executor.worker.module.shared_keys)
    experiment.executor.worker.module.receive(payload, None)
    for key, tensor in model.state_dict().items():
        if not key.startswith("fusion.frozen."):
            assert torch.equal(tensor, payload.params.get(key, initial[key])), key
    course = new_client.let_join(path, 1)[HELD_OUT]
    assert course.losses[1] < course.losses[0]


def test_the_held_out_client_of_a_trimmed_federation_has_all_groups(run):
    """Its own network would lack groups; a new client's first loss is that of the whole network, which is finite."""
    path = run("psi_net", *SKEWED, name="psi_net_1")
    experiment, _ = reopen(path)
    assert all(experiment.executor.worker.networks.key(k) is not None for k in range(HELD_OUT))
    assert np.isfinite(new_client.let_join(path, 1)[HELD_OUT].losses).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("{root}/nothing", "DIR must be a folder, but it is '{root}/nothing'."),
        (
            "{root}/begun",
            "RUN must be the directory of a finished run, but {root}/begun has no summary.json.",
        ),
        ("{root}/full", "RUN must leave clients out (federation.held_out), but {root}/full does not."),
        ("{root}/bare", "DIR must hold a checkpoint, but {root}/bare has none."),
        ("{root}/bare --epochs 0", "--epochs must be an integer of at least 1, but it is '0'."),
        ("{root}/bare --share 1.1", "--share must be in (0, 1], but it is '1.1'."),
        ("{root}/bare --lr 0", "--lr must be in (0, inf), but it is '0'."),
    ],
)
def test_refusals(arguments, sentence, run, command, tmp_path):
    shutil.copytree(run("fedavg"), tmp_path / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    shutil.copytree(run("fedavg"), tmp_path / "begun", ignore=shutil.ignore_patterns("summary.json"))
    full = shutil.copytree(run("fedavg"), tmp_path / "full") / "config.yaml"
    config = yaml.safe_load(full.read_text())
    config["federation"]["held_out"] = 0
    full.write_text(yaml.safe_dump(config))
    before = digest(tmp_path)
    code, out, err = command(*arguments.format(root=tmp_path).split())
    assert (code, out) == (2, "")
    assert re.match(re.escape(f"new_client: {sentence.format(root=tmp_path)}"), err), err
    assert err.count("\n") == 1
    assert digest(tmp_path) == before


@pytest.mark.parametrize(
    ("algorithm", "has_params"),
    [("fedhenn", True), ("fedhenn_hetero", False), ("fedma", True), ("fedrep", True)],
)
def test_every_method_gives_its_own_payload(algorithm, has_params, run):
    """The server's model, the shared part of it, or nothing where clients start from their initial networks."""
    # A pass of FedMA over the four layers.
    more = ("federation.num_rounds=4",) if algorithm == "fedma" else ()
    experiment, checkpoint = reopen(run(algorithm, *more))
    payload = experiment.server.newcomer_payload(checkpoint.server_state)
    assert type(payload) is experiment.server.payload_type
    assert bool(payload.params) == has_params
    assert "head.fc2.linear.weight" not in payload.params or algorithm != "fedrep"
    found = new_client.let_join(run(algorithm), 2)
    assert [len(course.accuracies) for course in found.values()] == [3]


def test_a_new_client_without_examples_is_refused(run, monkeypatch):
    from fedfeat.data.federated import FederatedData

    monkeypatch.setattr(FederatedData, "num_examples", lambda self, client_id: 0)
    sentence = (
        r"^federation\.held_out must leave out clients with examples, but it is 'client 3: 0 to train on and "
    )
    with pytest.raises(ConfigError, match=sentence):
        new_client.let_join(run("fedavg"), 1)


def test_the_example_of_its_page_runs(cli, command, tmp_path):
    """The first two lines, as they stand there but for what makes runs small, and for where they lie."""
    text = new_client.__doc__.replace("logs/sweeps/joining", str(tmp_path / "joining"))
    first, second, _ = [line.split("#")[0] for line in text.splitlines() if line.startswith("    uv run ")]
    words = shlex.split(first.removeprefix("    uv run fedfeat "))
    outcome = cli(*words, *FEDERATION)
    assert outcome.code == 0, outcome.stderr
    (pattern,) = shlex.split(second.removeprefix("    uv run python scripts/new_client.py "))
    runs = sorted(
        path for path in tmp_path.glob(str(pattern).removeprefix(f"{tmp_path}/").rstrip("/")) if path.is_dir()
    )
    assert len(runs) == len(METHODS)
    code, out, err = command(*runs, "--epochs", "1")
    assert (code, err) == (0, "")
    assert out.count("| algorithm") == 0
    assert all(f"| {method} |" in out for method in METHODS)
