"""Methods for unequal networks on a pool with batch norm, each client with the network whose turn it is."""

import pytest

import fedfeat
from fedfeat.commands import report
from fedfeat.commands.reopen import reopen
from fedfeat.models.freezing import still_keys

SMALL = (
    "data=digits", "data.loader.num_train=120", "data.loader.num_test=40", "partition=iid", "model=digits_cnn",
    "pool=small4", "federation.num_clients=5", "federation.num_rounds=2", "federation.batch_size=10",
    "federation.local_epochs=1", "federation.evaluate_local=true", "trainer=cpu",
)  # fmt: skip
METHODS = {
    "local": (),
    "lg_fedavg": (),
    "fedproto": (),
    "fedtgp": (),
    "fedgh": (),
    "fedhenn_hetero": ("algorithm.server.rad_size=12",),
}


def scores(found, data):
    """Score the stored personal models on the clients' own test parts."""
    for k in range(data.num_clients):
        chosen = data.test_indices(k)
        right = (
            found.personal_model(k).predict(data.dataset.test.inputs[chosen])
            == data.dataset.test.labels[chosen]
        )
        yield float(right.float().mean())


@pytest.mark.parametrize("method", METHODS)
def test_stored_models_are_those_that_were_scored(method, cli, tmp_path):
    """With a common head as wide as the features; client 4 runs what client 0 runs. No batch of one is left over."""
    assert cli(*SMALL, f"algorithm={method}", *METHODS[method]).code == 0
    found = fedfeat.load(tmp_path / "run")
    networks = [found.personal_model(k).module.model for k in range(5)]
    shapes = [[tuple(p.shape) for p in network.parameters()] for network in networks]
    assert shapes[0] == shapes[4]
    assert len({str(one) for one in shapes}) == 4
    assert {network.last_layer.in_features for network in networks} == {32}
    rows = found.clients[found.clients["round"] == 2].set_index("client_id")
    assert list(scores(found, reopen(tmp_path / "run")[0].data)) == pytest.approx(
        list(rows["personal_acc"]), abs=1e-6
    )
    # What crosses the wire is no larger than head, prototypes or kernels of what everyone has in common.
    head = 4 * (32 * 10 + 10)
    most = {"local": 0, "lg_fedavg": head, "fedproto": head + 200, "fedtgp": head + 200, "fedgh": head + 100}
    if method in most:
        assert found.summary["final"]["comm/up_bytes"] <= 2 * 5 * most[method]


def test_the_report_has_runs_of_pools(cli, console, tmp_path):
    for method in ("local", "fedproto"):
        assert cli(*SMALL, f"algorithm={method}", f"hydra.run.dir={tmp_path / 'sweep' / method}").code == 0
    code, _, err = console(report.main, tmp_path / "sweep", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert any(path.suffix == ".csv" for path in (tmp_path / "out").iterdir())


def test_what_is_frozen_in_one_network_of_a_pool_is_not_in_another(cli, tmp_path):
    words = ("algorithm=lg_fedavg", "pool.freeze={mlp: [body], cnn_bn: [norm]}")
    assert cli(*SMALL, *words).code == 0
    plain = fedfeat.load(tmp_path / "run")
    frozen = [still_keys(plain.personal_model(k).module.model) for k in range(5)]
    assert list(map(len, frozen)) == [0, 10, 2, 0, 0]  # two norms with statistics, one linear layer
