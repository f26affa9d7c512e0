"""Whole runs of methods whose clients keep models of their own: what is stored gives the models that were scored."""

import json

import pytest

import fedfeat
from fedfeat.commands.reopen import reopen

METHODS = {
    "ditto": (),
    "apfl": ("algorithm.client.adaptive=true",),
    "pfedme": (),
    "per_fedavg": ("algorithm.client.alpha=0.3",),
    "fedala": ("algorithm.client.ala_batch=4",),
}
OWN = ("federation.cohort_size=3", "federation.evaluate_local=true", "federation.final_epochs=1")


@pytest.mark.parametrize("method", METHODS)
def test_stored_models_are_those_that_were_scored(method, cli, small, tmp_path):
    command = [*small, f"algorithm={method}", *METHODS[method], *OWN]
    assert cli(*command).code == 0
    found = fedfeat.load(tmp_path / "run")
    data = reopen(tmp_path / "run")[0].data
    rows = found.clients[found.clients["round"] == found.rounds[-1]].set_index("client_id")
    assert rows["personal_acc"].nunique() > 1 or rows["personal_loss"].nunique() > 1
    for k in range(data.num_clients):
        chosen = data.test_indices(k)
        model = found.personal_model(k)
        right = model.predict(data.dataset.test.inputs[chosen]) == data.dataset.test.labels[chosen]
        assert float(right.float().mean()) == pytest.approx(rows["personal_acc"][k], abs=1e-6)
    for name in ("personal/acc_mean", "local_pre_agg/acc_mean", "final_all/acc_mean", "global/acc"):
        assert name in found.summary["final"]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_from_a_checkpoint_in_its_middle_to_the_same_weights(method, cli, small, tmp_path):
    """The newest checkpoint, of round 3, is lost with the summary."""
    command = [*small, f"algorithm={method}", *METHODS[method], *OWN]
    assert cli(*command).code == 0
    path = tmp_path / "run" / "summary.json"
    expected = json.loads(path.read_text())
    path.unlink()
    (tmp_path / "run" / "checkpoints" / "000003.json").unlink()
    assert cli(*command).code == 0
    found = json.loads(path.read_text())
    assert found["weights_sha256"] == expected["weights_sha256"]
    for name, value in expected["final"].items():
        assert name.startswith("time/") or found["final"][name] == value


def test_the_optimizer_of_pfedme_has_to_be_an_sgd(cli, small):
    outcome = cli(*small, "algorithm=pfedme", "optimizer=adam")
    assert outcome.code
    assert (
        "optimizer must be one of torch.optim.SGD for algorithm=pfedme, but it is 'Adam'." in outcome.stderr
    )


@pytest.mark.parametrize("method", METHODS)
def test_parts_cannot_be_personal_beside_a_model_that_is(method, cli, small):
    outcome = cli(*small, f"algorithm={method}", "algorithm.client.personal=[head]")
    assert outcome.code
    assert "algorithm.client.personal must be empty for" in outcome.stderr
