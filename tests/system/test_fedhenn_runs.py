"""FedHeNN, FedRep and pools through the command line: resumed, spilled, compared, refused."""

import csv
import json

import pytest
import torch
from refusals import named, refused_at_start

from fedfeat.algorithms.fedhenn import FedHeNNServer
from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.clients.worker import Worker
from fedfeat.commands.reopen import reopen
from fedfeat.runs.checkpoint import CheckpointFolder

SMALL_POOL = (
    "pool=hetero_cnn",
    "+pool.models.small={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8]}",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[6,5],dropout:0.2}",
    "pool.shares={small:0.5,deep:0.5}",
)
RAD = ("algorithm.server.rad_size=20", "algorithm.server.eta0=1.0", "algorithm.client.rad_batch=8")
HENN, HETERO = ("algorithm=fedhenn", *RAD), ("algorithm=fedhenn_hetero", *RAD, *SMALL_POOL)
REP = ("algorithm=fedrep", "algorithm.client.head_epochs=1", "federation.local_epochs=2")
METHODS = {"alike": HENN, "unequal": HETERO, "fedrep": REP}


def summary(run):
    return json.loads((run / "summary.json").read_text())


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("method", METHODS)
def test_a_broken_run_resumes_bit_for_bit_with_clients_on_disk(method, cli, small, tmp_path, monkeypatch):
    """A thousandth of a MiB is less than two clients' models."""
    command = [
        *small, *METHODS[method], "federation.num_rounds=5", "federation.cohort_size=2",
        "federation.opt_state=keep", "partition=quantity_skew", "partition.min_size=5",
    ]  # fmt: skip
    assert cli(*command, f"hydra.run.dir={tmp_path / 'whole'}").code == 0
    broken = [*command, "federation.ram_budget_mb=0.001", f"hydra.run.dir={tmp_path / 'broken'}"]
    save, calls = CheckpointFolder.save, []

    def failing(self, *arguments, **more):
        calls.append(None)
        if len(calls) == 4:
            raise RuntimeError("the power went out")
        return save(self, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointFolder, "save", failing)
        outcome = cli(*broken)
    assert "the power went out" in outcome.stderr
    assert not (tmp_path / "broken" / "summary.json").exists()
    assert len(list((tmp_path / "broken" / "clients").glob("*.safetensors"))) >= 2
    fits, fit = [], Worker.fit
    monkeypatch.setattr(Worker, "fit", lambda self, task: fits.append(task.round_idx) or fit(self, task))
    assert cli(*broken).code == 0
    assert len(fits) == 2 * len(set(fits)) < 2 * 5
    assert min(fits) > 1
    whole, resumed = (summary(tmp_path / name) for name in ("whole", "broken"))
    assert resumed["weights_sha256"] == whole["weights_sha256"]
    timeless = [
        {name: row[name] for name in row if not name.startswith("time/")}
        for run in ("whole", "broken")
        for row in rows(tmp_path / run / "metrics.csv")
    ]
    assert len(timeless) == 12
    assert timeless[:6] == timeless[6:]


def test_the_pool_does_not_depend_on_the_method(cli, small, tmp_path):
    """Until the term begins, after round 1, FedHeNN's clients learn as local ones do, on the same networks."""
    found = []
    for name, method in (("henn", HETERO), ("local", ("algorithm=local", *SMALL_POOL))):
        run = tmp_path / name
        assert cli(*small, *method, "federation.num_rounds=2", f"hydra.run.dir={run}").code == 0
        table = rows(run / "clients.csv")
        found.append([(row["round"], row["client_id"], row["personal_loss"]) for row in table])
    assert found[0][:8] == found[1][:8]
    assert found[0][8:] != found[1][8:]
    assert len(found[0]) == len(found[1]) == 12


def test_alike_clients_that_were_never_sampled_are_tested_with_the_servers_model(cli, small, tmp_path):
    assert cli(*small, *HENN, "federation.cohort_size=2", "federation.num_rounds=1").code == 0
    trained = set()
    for row in rows(tmp_path / "run" / "clients.csv"):
        if row["train_loss"]:
            trained.add(row["client_id"])
        assert (row["personal_loss"] == row["global_loss"]) == (row["client_id"] not in trained)
    assert len(trained) == 2


def test_unequal_clients_that_were_never_sampled_keep_their_initial_networks(cli, small, tmp_path):
    assert cli(*small, *HETERO, "federation.cohort_size=1", "federation.num_rounds=2").code == 0
    first, moved = {}, set()
    for row in rows(tmp_path / "run" / "clients.csv"):
        key = row["client_id"]
        first.setdefault(key, row["personal_loss"])
        if row["personal_loss"] != first[key]:
            moved.add(key)
        assert not row.get("global_loss")
    assert len(moved) == 2
    assert len(first) == 4


def test_the_servers_kernel_is_the_clients(cli, small, monkeypatch):
    made = []
    monkeypatch.setattr(
        FedHeNNHeteroServer,
        "broadcast",
        lambda self, *_, send=FedHeNNHeteroServer.broadcast: made.append(self) or send(self, *_),
    )
    options = ["algorithm.client.kernel=rbf", "algorithm.client.sigma_factor=0.7"]
    assert cli(*small, *HETERO, *options, "federation.num_rounds=1").code == 0
    assert made[0].kernel == "rbf"
    assert made[0].sigma_factor == 0.7


@pytest.fixture
def heard(monkeypatch):
    """What servers of alike clients have heard: inputs of every round."""
    found, hear = [], FedHeNNServer.hear

    def noting(self, state, inputs, answers):
        found.append(inputs)
        return hear(self, state, inputs, answers)

    monkeypatch.setattr(FedHeNNServer, "hear", noting)
    return found


def test_augmented_inputs_of_images_go_through_a_run(cli, small, tmp_path, heard):
    images = (
        "data.loader.shape=[1,28,28]",
        "data/transform=mnist_fusion",
        "algorithm.server.rad_augment=true",
    )
    assert cli(*small, *HENN, *images, "federation.num_rounds=2").code == 0
    assert summary(tmp_path / "run")["final"]["train/loss"] > 0
    assert [inputs.dtype for inputs in heard] == [torch.float32]  # the first round has no term


@pytest.mark.parametrize("source", ["train_pool", "heldout", "test_unlabelled"])
def test_inputs_of_any_source_go_through_a_run(source, cli, small, tmp_path, heard):
    options = (f"algorithm.server.rad_source={source}", "partition.val_fraction=0.2")
    assert cli(*small, *HENN, *options, "federation.num_rounds=2").code == 0
    data = reopen(tmp_path / "run")[0].data
    split = data.split
    pools = {
        "train_pool": data.dataset.train.inputs[split.train.indices],
        "heldout": data.dataset.train.inputs[split.val.indices],
        "test_unlabelled": data.dataset.test.inputs,
    }
    (inputs,) = heard
    held = {name: sum(any(torch.equal(x, y) for y in pool) for x in inputs) for name, pool in pools.items()}
    assert held == {name: len(inputs) * (name == source) for name in pools}


def test_the_permuted_partition_shares_inputs_too(cli, small, tmp_path):
    for name, method in (("alike", HENN), ("unequal", HETERO)):
        run = tmp_path / name
        options = ("partition=permuted", "federation.num_rounds=2", f"hydra.run.dir={run}")
        assert cli(*small, *method, *options).code == 0
        assert 0 <= summary(run)["final"]["personal/acc_mean"] <= 1


def test_alike_clients_average_by_what_the_configuration_names(cli, small, monkeypatch):
    made = []
    init = FedHeNNServer.__init__
    monkeypatch.setattr(
        FedHeNNServer, "__init__", lambda self, *a, **more: made.append(more) or init(self, *a, **more)
    )
    uniform = "algorithm.server.average.weighting=uniform"
    assert cli(*small, *HENN, uniform, "federation.num_rounds=1").code == 0
    assert made[0]["average"].weighting == "uniform"


POOL = " ".join(SMALL_POOL)
REFUSED = [
    (
        "code_swapped with a narrow network",
        "algorithm=fedhenn algorithm.client.repr_at=code_swapped model.hidden=[2]",
        r"algorithm\.client\.repr_at must be another where the penultimate output is narrower than the 3 classes, "
        r"but it is 'code_swapped'\.",
    ),
    (
        "code_swapped with a narrow network in the pool",
        f"algorithm=fedhenn_hetero algorithm.client.repr_at=code_swapped {POOL} "
        "+pool.models.narrow={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[2]} "
        "pool.shares=null pool.names=[small,deep,narrow,small]",
        r"algorithm\.client\.repr_at must be another where the penultimate output is narrower than the 3 classes",
    ),
    (
        "code_swapped and some classes",
        "algorithm=fedhenn algorithm.client.repr_at=code_swapped algorithm.client.softmax_scope=present_classes",
        r"algorithm\.client\.softmax_scope must be all where algorithm\.client\.repr_at is code_swapped, "
        r"but it is 'present_classes'\.",
    ),
    (
        "personal tensors",
        "algorithm=fedhenn +algorithm.client.personal=[last]",
        r"algorithm\.client\.personal must be empty for FedHeNN, whose clients keep a whole model each, "
        r"but it is \['last'\]\.",
    ),
    (
        "another server",
        "algorithm=fedavg algorithm/client=fedhenn",
        r"algorithm/client and algorithm/server must exchange the same payload, but FedHeNNClient speaks "
        r"AlignedWeights and FedAvgServer speaks Weights\.",
    ),
    (
        "another client",
        "algorithm=fedhenn algorithm/client=fedavg",
        r"algorithm/client and algorithm/server must exchange the same payload, but ClientModule speaks Weights",
    ),
    *(
        (
            f"a pool with {method}",
            f"algorithm={method} {POOL}",
            r"algorithm/server must average unequal networks where clients have them .*, but \w+Server cannot\.",
        )
        for method in ("fedavg", "fedrep", "fedhenn")
    ),
    (
        "a pool with groups",
        f"algorithm=fedhenn_hetero structure=grouped {POOL}",
        r"pool must be none for networks with groups or levels \(structure\), but it is 'a pool'\.",
    ),
    (
        "a pool whose neurons are to be compared",
        f"algorithm=fedhenn_hetero diagnostics=alignment {POOL}",
        r"pool must be none where neurons are compared \(diagnostics\), .*, but it holds A1, .*, small, deep\.",
    ),
    (
        "names of fewer clients",
        f"algorithm=local {POOL} pool.names=[small,deep]",
        r"pool\.names must have one name for each of the 4 clients, but it is '2 names'\.",
    ),
    (
        "a name that the pool lacks",
        f"algorithm=local {POOL} pool.shares=null pool.names=[small,deep,wide,deep]",
        r"pool\.names must name networks of the pool \(A1, .*, small, deep\), but it is 'wide'\.",
    ),
    (
        "a share of nothing",
        "algorithm=local pool=hetero_cnn pool.shares={A1:0.5,A2:0.4}",
        r"pool\.shares must add up to 1, but it is ",
    ),
    (
        "a network too large for the data",
        "algorithm=local pool=hetero_cnn pool.names=[A1,A1,A5,A1]",
        r"model hetero_cnn A\d needs inputs of at least \d+x\d+ pixels, but the data set gives \(1, 4, 4\)\.",
    ),
    (
        "nothing held out",
        "algorithm=fedhenn algorithm.server.rad_source=heldout",
        r"algorithm\.server\.rad_source must be another where partition\.val_fraction is 0, but it is 'heldout'\.",
    ),
    (
        "a negative weight",
        "algorithm=fedhenn algorithm.server.eta0=-1",
        r"algorithm\.server\.eta0 must be in \[0, inf\), but it is -1\.",
    ),
]


@pytest.mark.parametrize(("overrides", "sentence"), named(REFUSED))
def test_refused_at_the_start(overrides, sentence, cli, small, tmp_path):
    refused_at_start(cli, small, overrides, tmp_path, sentence)


def test_inputs_may_come_from_another_data_set(cli, small, tmp_path):
    """Synthetic images of another seed, under a key of their own; without any the source is refused."""
    command = [
        *small,
        *HENN,
        "algorithm.server.rad_source=public",
        "data@public=synthetic",
        "public.loader.shape=[1,4,4]",
        "public.loader.num_classes=3",
        "public.loader.seed=7",
    ]
    own = [word for word in command if "public" not in word]
    found = {}
    for name, words in (("public", command), ("own", own)):
        assert cli(*words, f"hydra.run.dir={tmp_path / name}").code == 0
        found[name] = summary(tmp_path / name)["weights_sha256"]
    assert found["public"] != found["own"]
    refused = cli(*[word for word in command if not word.startswith(("data@", "public"))])
    assert refused.stderr.startswith(
        "fedfeat: algorithm.server.rad_source must be another without a public data set"
    )
    other = cli(*[word.replace("[1,4,4]", "[1,5,5]") if "public" in word else word for word in command])
    assert other.stderr.startswith("fedfeat: data@public must have inputs of the shape (1, 4, 4)")
