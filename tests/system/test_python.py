"""Runs from Python: `fedfeat.run` is the command line, `fedfeat.build` its parts, `fedfeat.load` what a run leaves."""

import csv
import json
import shutil
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace

import hydra
import numpy as np
import pytest
import torch
from hydra import initialize_config_dir
from refusals import digest

import fedfeat
from fedfeat.commands.python import composed
from fedfeat.commands.reopen import reopen
from fedfeat.config.choices import CONFIGS
from fedfeat.errors import CheckpointError, ConfigError, UserError
from fedfeat.rounds.samplers import RoundRobin

DIGITS = (
    "data=digits", "data.loader.num_train=200", "data.loader.num_test=90", "partition=n_classes",
    "federation.num_clients=4", "federation.num_rounds=2", "federation.local_epochs=1", "trainer=cpu",
)  # fmt: skip


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFEAT_ROOT", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def run(kept, monkeypatch):
    """Give the directory of a finished run on digits; made once."""
    monkeypatch.setenv("FEDFEAT_ROOT", str(kept))

    def make(*overrides):
        path = kept / f"{abs(hash(overrides))}"
        return fedfeat.run([*DIGITS, *overrides, f"hydra.run.dir={path}"]).run_dir

    return make


def summary(run_dir):
    return json.loads((run_dir / "summary.json").read_text())


def test_importing_costs_nothing():
    code = "import sys, fedfeat; sys.exit(any(m in sys.modules for m in ('torch', 'hydra', 'numpy', 'omegaconf')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert fedfeat.__all__ == ["build", "load", "run"]
    with pytest.raises(AttributeError, match="has no attribute 'fit'"):
        fedfeat.fit  # noqa: B018


def test_a_run_is_that_of_the_command_line(cli, small, root):
    outcome = cli(*small, f"hydra.run.dir={root / 'first'}")
    assert outcome.code == 0, outcome.stderr
    found = fedfeat.run([*small, f"hydra.run.dir={root / 'second'}"])
    assert found.run_dir == root / "second"
    assert found.summary == summary(root / "second")
    assert found.summary["weights_sha256"] == summary(root / "first")["weights_sha256"]
    names = [sorted(p.name for p in (root / run).rglob("*")) for run in ("first", "second")]
    assert names[0] == names[1]
    for file in ("config.yaml", ".hydra/config.yaml", ".hydra/overrides.yaml"):
        assert (root / "first" / file).read_text() == (root / "second" / file).read_text()
    assert "runtime" in (root / "second/.hydra/hydra.yaml").read_text()


def test_several_runs_in_one_process_under_names_of_their_own(small, root):
    first, second = fedfeat.run(small), fedfeat.run([*small, "seed=1", "name=other"])
    assert first.run_dir.parent.name == "synthetic-fedavg"
    assert second.run_dir.parent.name == "other"
    assert first.run_dir.is_relative_to(root)
    assert first.summary["weights_sha256"] != second.summary["weights_sha256"]


def test_runs_that_begin_in_one_second_have_directories_of_their_own(small):
    places = {composed(small).hydra.run.dir for _ in range(5)}
    assert len(places) == 5


def test_a_run_that_is_left_goes_on_and_a_finished_one_stays(small, root):
    words = [*small, f"hydra.run.dir={root / 'run'}"]
    experiment = fedfeat.build(words)
    with ExitStack() as stack:
        course = experiment.records(stack)
        assert next(course).round_idx == 0
        record = next(course)
        assert (record.round_idx, record.cohort) == (1, (0, 1, 2, 3))
        assert experiment.checkpoints.rounds() == [1]
        course.close()
    found = fedfeat.run(words)
    with (root / "run" / "metrics.csv").open() as file:
        assert [row["round"] for row in csv.DictReader(file)] == ["0", "1", "2", "3"]
    whole = fedfeat.run([*small, f"hydra.run.dir={root / 'whole'}"])
    assert found.summary["weights_sha256"] == whole.summary["weights_sha256"]
    before = digest(root / "run")
    assert fedfeat.run(words) == found
    assert digest(root / "run") == before
    with pytest.raises(
        CheckpointError, match=r"^hydra\.run\.dir must be a new directory .* with seed=0 instead of 5"
    ):
        fedfeat.run([*words, "seed=5"])


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("seed=-1", "seed must be an integer of at least 0, but it is -1."),
        ("optimizer=3", "optimizer must be one of "),
        ("model=nothing", "model must be one of "),
        ("logger=[csv,nothing]", "logger must be one of all, "),
        ("+x=1", "x must be a known key, but there is none of that name; "),
        ("model.hiden=3", "model.hiden must be a known key, but there is none of that name; "),
        ("seed=${nowhere.seed}", "seed must have a value, but it has none: "),
        ("arm=fedavg", "arm must be none beside algorithm=fedavg, but it is 'fedavg'."),
        ("seed=???", "seed must be set, but it is '???'."),
        ("seed", "seed must be key=value as Hydra's grammar has it, "),
        ("structure.groups=4", "structure.groups must be a known key, "),
        ("algorithm.server=fedavg", "algorithm.server must be chosen as a group, algorithm/server=fedavg, "),
        ("+a.b@c=3", "Override +a.b@c=3 looks like a config group override, "),
        (
            "--multirun",
            "overrides must be words such as data=cifar10, and none of the command line's options ",
        ),
        ("", "overrides must be words "),
        (3, "overrides must be words "),
    ],
)
@pytest.mark.parametrize("function", ["run", "build"])
def test_refusals_are_errors_of_one_sentence(function, word, sentence, small, root, capsys):
    with pytest.raises(UserError) as caught:
        getattr(fedfeat, function)([*small, word])
    assert " ".join(str(caught.value).split()).startswith(sentence)
    assert capsys.readouterr() == ("", "")


def test_another_application_of_hydra_around_it_stays_as_it_is(small, root):
    with initialize_config_dir(str(CONFIGS / "model"), version_base="1.3"):
        found = fedfeat.run(small)
        assert hydra.compose("mlp").hidden == [64]
    assert found.summary["num_rounds"] == 3


def test_data_and_cohorts_of_ones_own(small, root):
    experiment = fedfeat.build([*small, "data.loader.num_classes=5", "federation.num_clients=2"])
    other = fedfeat.build([*small, "federation.cohort_size=1", "model.hidden=[3]"], experiment.data)
    assert other.data is experiment.data
    assert other.executor.worker.module.model.num_classes == 5
    other.plan = replace(other.plan, sampler=RoundRobin())
    records = [record for _, record in other.rounds(other.begin()[0])]
    cohorts = [record.cohort for record in records]
    assert cohorts[1] == cohorts[3] != cohorts[2]


def test_what_a_run_has_written_is_read(run):
    path = run("algorithm=fedavg")
    before = digest(path)
    found = fedfeat.load(path)
    assert found.config["algorithm"]["name"] == "fedavg"
    assert found.summary == summary(path)
    assert found.rounds == [1, 2]
    with (path / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert found.metrics["global/acc"].tolist() == [float(row["global/acc"]) for row in table]
    assert found.metrics["round"].tolist() == [0, 1, 2]
    assert found.metrics.shape == (3, len(table[0]))
    assert found.clients["client_id"].tolist() == [0, 1, 2, 3] * 3
    found.model(), found.personal_model(0)
    assert digest(path) == before


def accuracy(model, data, chosen=None):
    indices = np.arange(data.num_test) if chosen is None else chosen
    test = data.dataset.test
    return (model.predict(test.inputs[indices]) == test.labels[indices]).double().mean().item()


METHODS = {
    "fedavg": ("algorithm=fedavg",),
    "fed2": ("algorithm=fed2",),
    "auto": ("algorithm=fed2", "structure.depth=auto", "structure.warmup_epochs=1"),
    "psi_net": ("algorithm=psi_net",),
    "fedrep": ("algorithm=fedrep", "federation.cohort_size=1"),
    "fedfusion": ("algorithm=fedfusion",),
    "fedadam": ("algorithm=fedadam",),
    "fedbabu": ("algorithm=fedbabu",),
    "local": ("algorithm=local", "federation.opt_state=keep"),
    "hetero": (
        "algorithm=fedhenn_hetero", "algorithm.server.rad_size=20", "algorithm.client.rad_batch=8", "pool=hetero_cnn",
        "~pool.models", "+pool.models.a={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8]}",
        "+pool.models.b={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[9,7]}",
    ),
    "permuted": ("algorithm=local", "partition=permuted"),
    "permuted, an order of the server's": ("algorithm=fedavg", "partition=permuted", "partition.global_order=server"),
    "centralized": ("algorithm=centralized",),
    "bf16": ("algorithm=fedavg", "trainer=cpu_bf16"),
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_models_score_as_in_the_run_and_need_no_data(method, run, monkeypatch):
    """The server's model on all test examples, clients' own ones on their parts, as the last row says."""
    path = run(*METHODS[method])
    data = reopen(path)[0].data
    monkeypatch.setattr("fedfeat.data.digits.digits", None)
    found = fedfeat.load(path)
    last = found.metrics.iloc[-1]
    if "global/acc" in last:
        assert accuracy(found.model(), data) == pytest.approx(last["global/acc"], abs=1e-9)
    else:
        with pytest.raises(
            CheckpointError,
            match=rf"^model must be a client's \(personal_model\) for {found.config['algorithm']['name']}, ",
        ):
            found.model()
    if "personal/acc_mean" in last:
        newest = found.clients["round"] == 2
        row = dict(
            zip(found.clients["client_id"][newest], found.clients["personal_acc"][newest], strict=True)
        )
        for client_id in range(data.num_clients):
            model = found.personal_model(client_id)
            assert accuracy(model, data, data.test_indices(client_id)) == pytest.approx(
                row[client_id], abs=1e-9
            )


@pytest.mark.parametrize("method", ["fedavg", "bf16"])
def test_features_are_what_the_last_layer_reads(method, run):
    path = run(*METHODS[method])
    model, inputs = fedfeat.load(path).model(), reopen(path)[0].data.dataset.test.inputs[:70]
    features = model.features(inputs)
    assert features.dtype == torch.float32
    assert features.shape == (70, model.module.model.last_layer.in_features)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=method == "bf16"):
        torch.testing.assert_close(model.module.model.last_layer(features).float(), model(inputs))


def test_features_of_a_client_are_those_of_its_own_network(run):
    """Per-FedAvg's is made by a step on the client's data, beside the network that was received."""
    path = run("algorithm=per_fedavg", "algorithm.client.alpha=0.5")
    inputs = reopen(path)[0].data.dataset.test.inputs[:70]
    model = fedfeat.load(path).personal_model(1)
    with torch.inference_mode():
        torch.testing.assert_close(model.module.own.network.last_layer(model.features(inputs)), model(inputs))


def test_earlier_checkpoints_have_their_models(run):
    found = fedfeat.load(run("algorithm=fedavg"))
    experiment, _ = reopen(found.run_dir)
    for at in (1, 2):
        assert accuracy(found.model(at), experiment.data) == pytest.approx(found.metrics["global/acc"][at])
    with pytest.raises(
        CheckpointError, match=r"round must be one of the checkpoints in .* \(1, 2\), but it is 0"
    ):
        found.model(0)


def test_models_do_not_share_tensors_and_read_what_is_given(run):
    found = fedfeat.load(run("algorithm=fedavg"))
    first, second = found.model(1), found.model(2)
    data = reopen(found.run_dir)[0].data
    raw = data.dataset.test.inputs[:7]
    assert not torch.equal(first(raw), second(raw))
    assert first(raw).shape == (7, 10)
    assert not first.module.training
    assert not first(raw).requires_grad
    assert torch.equal(first(raw.numpy()), first(raw))
    assert torch.equal(first(data.plain(raw)), first(raw))
    assert first.classes == tuple(data.dataset.classes)


def test_runs_without_facts_take_the_data_set(run, tmp_path):
    path = shutil.copytree(run("algorithm=psi_net"), tmp_path / "old")
    expected = fedfeat.load(path).personal_model(1)
    (path / "data.json").unlink()
    raw = reopen(path)[0].data.dataset.test.inputs[:5]
    assert torch.equal(fedfeat.load(path).personal_model(1)(raw), expected(raw))
    (path / "data.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"data\.json must describe the run's data, but it does not: "):
        fedfeat.load(path).model()


def test_what_cannot_be_loaded(run, tmp_path):
    with pytest.raises(CheckpointError, match=r"^DIR must be a run directory, but .* has no config\.yaml\.$"):
        fedfeat.load(tmp_path)
    with pytest.raises(CheckpointError, match=r"^client_id must be an integer from 0 to 3, but it is 4\.$"):
        fedfeat.load(run("algorithm=fedavg")).personal_model(4)
    for wrong in ("3", 3.0, True, None):
        with pytest.raises(CheckpointError, match=r"^client_id must be an integer from 0 to 3, "):
            fedfeat.load(run("algorithm=fedavg")).personal_model(wrong)
    for device in ("gpu", "cuda:99"):
        with pytest.raises(ConfigError, match=f"^device must be one of this machine, but it is '{device}'"):
            fedfeat.load(run("algorithm=fedavg"), device)


def test_images_of_another_kind_than_the_run_s_are_refused(run):
    model = fedfeat.load(run("algorithm=fedavg")).model()
    for shape, dtype, said in (
        ((4, 1, 9, 9), torch.uint8, r"uint8 \(4, 1, 9, 9\)"),
        ((4, 8, 8), torch.uint8, r"uint8 \(4, 8, 8\)"),
        ((4, 1, 8, 8), torch.int64, r"int64 \(4, 1, 8, 8\)"),
    ):
        with pytest.raises(
            ConfigError, match=rf"^inputs must be uint8 \(B, 1, 8, 8\), .* but they are {said}\.$"
        ):
            model(torch.zeros(shape, dtype=dtype))
