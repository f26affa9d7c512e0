"""Presets of FedHeNN and its baselines: settings, published numbers, arms, sweeps, and who is weak in them."""

import csv

import pytest
from presets import axes, chosen, composed, files
from torch import nn
from tweets import tiny_tweets

from fedfeat.algorithms.fedhenn_hetero import FedHeNNHeteroServer
from fedfeat.commands.reopen import reopen
from fedfeat.config.rules import check
from fedfeat.runs.finished import published_numbers
from fedfeat.runs.text import flatten

PRESETS = {name: path for name, path in files("experiment", "fedhenn").items() if not name.startswith("base")}
CNN, LSTM = "fedhenn_hetero_cnn", "fedhenn_hetero_lstm"
ARMS = ("fedavg", "fedprox_mu01", "fedrep", "fedhenn", CNN)

# data.md#transforms, networks.md, methods/fedhenn.md#settings and methods/fedhenn.md#presets: data, network,
# transform; partition; batch size.
C10 = ("cifar10", "fedfeat.models.cnn.fedrep_cnn10", "cifar_fedrep")
C100 = ("cifar100", "fedfeat.models.cnn.fedrep_cnn100", "cifar100_fedrep")
SENT = ("sent140", "fedfeat.models.lstm.sent140_lstm", "none")
USERS = ("Natural", "column", "user")


def shards(number):
    return ("shards", "shards_per_client", number)


# Then clients, FedRep's epochs (None: not an arm), and per cent: FedAvg, FedProx, FedHeNN; FedRep, homo, hetero.
SETTINGS = {
    "fh_t2_c10_100_2": (C10, shards(2), 10, 100, 11, (44.29, 53.8, 68.8), (85.7, 94.7, 88.9)),
    "fh_t2_c10_100_5": (C10, shards(5), 10, 100, 15, (58.14, 63.3, 70.19), (72.4, 84.37, 73.01)),
    "fh_t2_c10_500_2": (C10, shards(2), 10, 500, 11, (42.7, 50.46, 65.4), (78.9, 86.5, 82.02)),
    "fh_t2_c10_500_5": (C10, shards(5), 10, 500, 15, (56.8, 55.2, 64.7), (58.14, 73.32, 61.74)),
    "fh_t2_c100_100_20": (C100, shards(20), 10, 100, 15, (28.6, 27.3, 44.2), (38.85, 62.89, 43.36)),
    "fh_t2_sent": (SENT, USERS, 4, 100, 15, (52.6, 52.7, 52.7), (69.8, 72.6, 71.5)),
    "fh_t1_kernel_c10": (C10, shards(2), 10, 100, None, None, None),
    "fh_t1_kernel_c100": (C100, shards(20), 10, 100, None, None, None),
    "fh_t1_kernel_sent": (SENT, USERS, 4, 100, None, None, None),
    "fh_t1_width": (C10, shards(2), 10, 100, None, None, None),
    "fh_rad_size": (C10, shards(2), 10, 100, None, None, None),
    "fh_fig1_excluded": (C10, shards(5), 10, 100, None, None, None),
    "fh_fig3_data": (C10, shards(5), 10, 100, None, None, None),
    "fh_epochs": (C10, shards(2), 10, 100, None, None, None),
}
TABLE2 = [name for name, row in SETTINGS.items() if row[4]]
SEEDS = {"seed": ["0", "1", "2"]}
AXES = {
    **{name: {"arm": [*ARMS[:4], LSTM if name == "fh_t2_sent" else CNN]} for name in TABLE2},
    **{f"fh_t1_kernel_{data}": {"algorithm.client.kernel": ["linear", "rbf"]} for data in ("c10", "c100", "sent")},
    "fh_t1_width": {"algorithm.client.sigma_factor": ["0.2", "0.4", "0.8"]},
    "fh_rad_size": {
        "arm": ["fedhenn", CNN], "algorithm.server.rad_size": ["100", "500", "1000", "2500", "5000"]
    },
    "fh_fig1_excluded": {
        "arm": ["fedavg", "fedprox_mu01", "fedhenn_weak"],
        "scenario.weak_fraction": ["0.0", "0.2", "0.4", "0.6", "0.8"],
    },
    "fh_fig3_data": {
        "arm": ["fedavg", "fedprox_mu01", "fedhenn", CNN],
        "scenario.reduced_fraction": ["0.0", "0.25", "0.5", "0.75", "1.0"],
    },
    "fh_epochs": {
        "arm": ["fedavg", "fedprox_mu01", "fedhenn", CNN], "federation.local_epochs": ["1", "5", "10", "20"]
    },
}  # fmt: skip


def test_every_preset_has_a_sweep_and_says_its_command():
    assert set(PRESETS) == set(SETTINGS) == set(AXES)
    for name, path in PRESETS.items():
        assert f"# fedfeat --multirun experiment=fedhenn/{name}\n" in path.read_text()
        assert axes(path) == AXES[name] | SEEDS


@pytest.mark.parametrize("name", SETTINGS)
def test_a_preset_is_the_row_of_the_specification(name):
    (data, model, transform), (scheme, key, value), batch_size, clients, *_ = SETTINGS[name]
    config = composed(f"experiment=fedhenn/{name}")
    check(config)
    assert config["group"] == f"fedhenn/{name}"
    assert config["name"].startswith(f"{name}-")
    assert config["data"]["name"] == data
    assert config["data"]["transform"] == {"_target_": f"fedfeat.data.transforms.{transform}"}
    assert config["model"]["_target_"] == model
    assert config["partition"]["_target_"] == f"fedfeat.data.partition.schemes.{scheme}"
    assert config["partition"][key] == value
    assert config["partition"].get("split") == (None if scheme == "Natural" else "native")
    federation = config["federation"]
    work = ("num_clients", "num_rounds", "local_epochs", "batch_size", "final_epochs", "opt_state")
    assert tuple(federation[key] for key in work) == (clients, 200, 20, batch_size, 10, "reset")
    # A tenth of 100 clients, by either key.
    fig1 = name == "fh_fig1_excluded"
    assert (federation["fraction"], federation["cohort_size"]) == ((None, 10) if fig1 else (0.1, None))
    scenario = config["scenario"]
    assert scenario["weak_fraction"] == (0.4 if fig1 else 0)
    assert scenario["reduced_fraction"] == (0.5 if name == "fh_fig3_data" else 0)
    assert scenario["reduced_to"] == 0.5
    assert config["optimizer"] == {
        "_target_": "fedfeat.clients.optimizers.sgd_sparing_biases", "_partial_": True,
        "lr": 0.01, "momentum": 0.5, "weight_decay": 1e-4,
    }  # fmt: skip
    assert config["schedule"] == {"_target_": "fedfeat.rounds.schedules.Constant"}


@pytest.mark.parametrize("preset", TABLE2)
def test_published_accuracies_and_the_epochs_of_every_arm(preset):
    *_, fedrep, averaged, own = SETTINGS[preset]
    hetero = AXES[preset]["arm"][-1]
    for arm in (*ARMS[:4], hetero, "local"):
        config = composed(f"experiment=fedhenn/{preset}", chosen(arm))
        check(config)
        assert config["name"] == f"{preset}-{arm}"
        assert config["federation"]["local_epochs"] == (fedrep if arm == "fedrep" else 20)
        expected = {
            "last10/global/client_acc_mean": dict(
                zip(("fedavg", "fedprox_mu01", "fedhenn"), averaged, strict=True)
            ).get(arm),
            "last10/personal/acc_mean": dict(zip(("fedrep", "fedhenn", hetero), own, strict=True)).get(arm),
        }
        assert published_numbers(config) == {
            key: pytest.approx(percent / 100) for key, percent in expected.items() if percent is not None
        }


@pytest.mark.parametrize("preset", SETTINGS)
def test_published_numbers_are_for_reports_alone(preset):
    with_numbers, without = (
        composed(f"experiment=fedhenn/{preset}", *more) for more in ((), ("++published=null",))
    )
    assert without.pop("published") is None
    with_numbers.pop("published", None)
    assert without == with_numbers


def test_published_numbers_count_every_client_alike():
    for preset in TABLE2:
        quantities = {"last10/global/client_acc_mean", "last10/personal/acc_mean"}
        assert set(composed(f"experiment=fedhenn/{preset}")["published"]) == quantities


def test_tweets_and_their_network_are_those_of_leaf_and_fedrep():
    """methods/fedhenn.md#sentiment140."""
    config = composed("experiment=fedhenn/fh_t2_sent")
    loader, model = config["data"]["loader"], config["model"]
    sample = ("sample_fraction", "min_tweets", "num_users", "train_fraction")
    assert [loader[key] for key in sample] == [0.3, 50, 100, 0.8]
    assert [loader[key] for key in ("num_tokens", "lowercase", "embed")] == [25, False, "learned"]
    keys = ("num_layers", "embed_dim", "hidden", "fc_width", "dropout", "mode")
    assert [model[key] for key in keys] == [1, 300, 128, 10, 0.5, "correct"]


@pytest.mark.parametrize(
    ("data", "linear", "rbf"), [("c10", 94.47, 93.03), ("c100", 84.37, 83.03), ("sent", 72.6, 72.8)]
)
def test_published_kernels(data, linear, rbf):
    for kernel, percent in (("linear", linear), ("rbf", rbf)):
        config = composed(f"experiment=fedhenn/fh_t1_kernel_{data}", f"algorithm.client.kernel={kernel}")
        assert config["algorithm"]["name"] == "fedhenn"
        assert config["name"] == f"fh_t1_kernel_{data}-{kernel}"
        assert published_numbers(config) == {"last10/personal/acc_mean": pytest.approx(percent / 100)}


def test_widths_of_the_gaussian_kernel_stand_beside_the_number_of_table_1():
    config = composed("experiment=fedhenn/fh_t1_width", "algorithm.client.sigma_factor=0.8")
    assert (config["algorithm"]["client"]["kernel"], config["name"]) == ("rbf", "fh_t1_width-0.8")
    assert published_numbers(config) == {"last10/personal/acc_mean": pytest.approx(0.9303)}


def test_all_shared_inputs_are_in_the_term_where_their_number_is_swept():
    for arm in ("fedhenn", CNN):
        config = composed("experiment=fedhenn/fh_rad_size", chosen(arm), "algorithm.server.rad_size=2500")
        assert config["algorithm"]["client"]["rad_batch"] is None
        assert config["name"] == f"fh_rad_size-{arm}-2500"
        assert published_numbers(config) == {}


@pytest.mark.parametrize("preset", TABLE2)
def test_targets_lie_on_both_sides_of_every_published_accuracy(preset):
    targets = composed(f"experiment=fedhenn/{preset}")["federation"]["targets"]
    for percent in (*SETTINGS[preset][-2], *SETTINGS[preset][-1]):
        assert any(percent / 100 - 0.05 <= target <= percent / 100 for target in targets), percent
        assert any(percent / 100 <= target <= percent / 100 + 0.05 for target in targets), percent


def test_figures_publish_nothing_and_name_their_points():
    fig1 = composed("experiment=fedhenn/fh_fig1_excluded", "algorithm=fedavg", "scenario.weak_fraction=0.2")
    fig3 = composed("experiment=fedhenn/fh_fig3_data", "scenario.reduced_fraction=1.0")
    epochs = composed("experiment=fedhenn/fh_epochs", "federation.local_epochs=5")
    assert [config["name"] for config in (fig1, fig3, epochs)] == [
        "fh_fig1_excluded-fedavg-0.2", "fh_fig3_data-fedhenn-1.0", "fh_epochs-fedhenn-5"
    ]  # fmt: skip
    assert [published_numbers(config) for config in (fig1, fig3, epochs)] == [{}, {}, {}]


def test_arms_differ_from_their_methods_in_one_thing():
    def flat(arm):
        return flatten(composed("experiment=fedhenn/fh_t2_c10_100_2", chosen(arm)), ".")

    prox = {
        "algorithm.name": "fedprox_mu01",
        "name": "fh_t2_c10_100_2-fedprox_mu01",
        "algorithm.client.mu": 0.1,
    }
    assert flat("fedprox_mu01") == flat("fedprox") | prox
    plain = flat("fedhenn_hetero")
    for arm in (CNN, LSTM, "fedhenn_weak"):
        found = flat(arm)
        names = {"algorithm.name", "name"}
        differing = {key for key in found.keys() | plain.keys() if found.get(key) != plain.get(key)}
        assert {key for key in differing - names if not key.startswith("pool")} == set()
        assert any(key.startswith("pool.models.") for key in differing)


def test_defaults_of_the_methods_are_those_of_the_specification():
    fedhenn = composed("experiment=fedhenn/fh_t2_c10_100_2")["algorithm"]
    client, server = fedhenn["client"], fedhenn["server"]
    assert (client["kernel"], client["hsic"], client["rad_batch"]) == ("linear", "biased", 256)
    assert (client["repr_at"], client["logits_dropout"]) == ("penultimate", 0.0)
    assert (server["rad_size"], server["rad_source"], server["rad_augment"]) == (5000, "train_pool", False)
    assert (server["eta0"], server["eta_schedule"]) == (0.01, "sqrt")
    assert server["average"]["weighting"] == "samples"
    hetero = composed("experiment=fedhenn/fh_t2_c10_100_2", f"arm={CNN}")
    assert (hetero["algorithm"]["server"]["kbar_over"], hetero["algorithm"]["server"]["kernel_norm"]) == (
        "all", "none"
    )  # fmt: skip
    assert list(hetero["pool"]["models"]) == ["A1", "A2", "A3", "A4", "A5"]
    assert hetero["pool"]["shares"] is hetero["pool"]["weak"] is None
    texts = composed("experiment=fedhenn/fh_t2_sent", f"arm={LSTM}")["pool"]
    assert {name: model["num_layers"] for name, model in texts["models"].items()} == {
        "one_layer": 1, "two_layers": 2
    }  # fmt: skip
    assert texts["shares"] is texts["weak"] is None
    fedrep = composed("experiment=fedhenn/fh_t2_c10_100_2", "algorithm=fedrep")["algorithm"]
    assert (fedrep["client"]["head_epochs"], fedrep["client"]["personal"]) == (10, ["last"])
    weak = composed("experiment=fedhenn/fh_fig1_excluded", "arm=fedhenn_weak")["pool"]
    assert (weak["shares"], weak["weak"], weak["names"]) == ({"A4": 1.0}, "A1", None)


SMALL = (
    "data=synthetic", "data.loader.shape=[3,16,16]", "data.loader.num_train=100", "data.loader.num_test=50",
    "data/transform=none", "federation.num_clients=5", "federation.num_rounds=2", "federation.local_epochs=1",
    "federation.final_epochs=1", "partition.shards_per_client=2", "trainer=cpu", "trainer.num_threads=1",
)  # fmt: skip


def rows_of(run_dir, round_idx):
    with open(run_dir / "clients.csv", newline="") as file:
        return {int(row["client_id"]): row for row in csv.DictReader(file) if row["round"] == str(round_idx)}


def test_weak_clients_are_left_out_or_run_the_small_network(cli, tmp_path, caplog):
    """The same two of five clients in either arm, and everyone is scored in both."""
    from fedfeat.data.affected import weak_clients

    weak = weak_clients(0, 5, 0.4)
    assert len(weak) == 2
    caplog.set_level("INFO", logger="fedfeat")
    for arm, size in (("fedavg", 3), ("fedhenn_weak", 5)):
        run = tmp_path / arm
        outcome = cli(
            "experiment=fedhenn/fh_fig1_excluded", f"arm={arm}", *SMALL, "model=hetero_cnn",
            f"federation.cohort_size={size}", f"hydra.run.dir={run}",
            *(["algorithm.server.rad_size=20"] if arm == "fedhenn_weak" else []),
        )  # fmt: skip
        assert outcome.code == 0, outcome.stderr
        experiment, _ = reopen(run)
        names = getattr(experiment.executor.worker.networks, "names", None)
        rows = rows_of(run, 2)
        assert set(rows) == set(range(5))
        assert all(row["final_acc"] for row in rows.values())
        trained = {k for k, row in rows.items() if row["train_loss"]}
        if arm == "fedavg":
            assert (experiment.plan.excluded, names, trained) == (weak, None, set(range(5)) - weak)
            assert all(row["global_acc"] for row in rows.values())
            assert (
                "2 weak clients take part in no round, for no pool has a network for them." in caplog.messages
            )
        else:
            expected = tuple("A1" if k in weak else "A4" for k in range(5))
            assert (experiment.plan.excluded, names, trained) == (frozenset(), expected, set(range(5)))


def test_a_cohort_needs_clients_that_can_run_the_network(cli, tmp_path):
    outcome = cli(
        "experiment=fedhenn/fh_fig1_excluded",
        "algorithm=fedavg",
        *SMALL,
        "model=mlp",
        "federation.cohort_size=4",
    )
    assert outcome.code == 2
    assert outcome.stderr.splitlines()[-1].endswith(
        "federation.cohort_size must be at most the number of clients that take part (3), but it is 4."
    )
    assert not (tmp_path / "run" / "metrics.csv").exists()


def unequal_lstms(folder):
    """Overrides for ten clients with LSTMs of one or two layers on tweets that are written into a folder."""
    return (
        "experiment=fedhenn/fh_t2_sent", f"arm={LSTM}", *tiny_tweets(folder), "data.loader.num_tokens=4",
        "federation.num_clients=10", "federation.local_epochs=1", "trainer=cpu", "trainer.num_threads=1",
    )  # fmt: skip


def test_texts_with_unequal_networks(cli, tmp_path):
    """A round of the arm with LSTMs of one or two layers, and the fit of all clients after it."""
    outcome = cli(
        *unequal_lstms(tmp_path / "tweets"), "federation.num_rounds=1", "federation.final_epochs=1",
        "algorithm.server.rad_size=8", "model.hidden=8",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    networks = reopen(tmp_path / "run")[0].executor.worker.networks
    lstms = [
        next(layer for layer in networks.build(networks.key(k)).modules() if isinstance(layer, nn.LSTM))
        for k in range(10)
    ]
    assert {lstm.num_layers for lstm in lstms} == {1, 2}
    rows = rows_of(tmp_path / "run", 1)
    assert len(rows) == 10
    assert all(row["final_acc"] for row in rows.values())
    assert sum(row["train_loss"] != "" for row in rows.values()) == 1


def test_an_lstms_last_output_is_compared_where_it_is_asked_for(cli, tmp_path, monkeypatch):
    """20 inputs: kernels of the 128 numbers of an LSTM come whole, those of the 10 behind them as factors."""
    widths, hear = [], FedHeNNHeteroServer.hear

    def noting(self, state, inputs, answers):
        answers = list(answers)
        widths.extend(answer.payload.values.shape[1] for answer in answers)
        return hear(self, state, inputs, iter(answers))

    monkeypatch.setattr(FedHeNNHeteroServer, "hear", noting)
    outcome = cli(
        *unequal_lstms(tmp_path / "tweets"), "federation.num_rounds=2", "federation.final_epochs=null",
        "algorithm.server.rad_size=20", "algorithm.client.repr_at=features",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    assert widths == [20] * 10


def test_clients_that_lost_data_weigh_less(cli, tmp_path):
    """Of five clients with 20 examples round(.4 * 5) have 10 left."""
    outcome = cli(
        "experiment=fedhenn/fh_fig3_data", "algorithm=fedavg", *SMALL, "model=mlp", "federation.num_rounds=0",
        "federation.final_epochs=null", "scenario.reduced_fraction=0.4",
    )  # fmt: skip
    assert outcome.code == 0, outcome.stderr
    sizes = [int(row["num_examples"]) for row in rows_of(tmp_path / "run", 0).values()]
    assert sorted(sizes) == [10, 10, 20, 20, 20]
