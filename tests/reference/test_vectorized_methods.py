"""Whole configurations under `executor=vectorized` and `executor=serial`: grouped networks, and every method."""

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from stacked_rounds import TOLERANCE, assert_agree

from fedfeat import tree
from fedfeat.commands.assembly import build_experiment
from fedfeat.config.choices import CONFIGS
from fedfeat.errors import ConfigError
from fedfeat.executors.stacked.fit import StackedClients
from fedfeat.rounds.loop import run_rounds

SMALL = (
    "data=digits",
    "data.loader.num_train=120",
    "data.loader.num_test=30",
    "model.width=4",
    "federation.num_clients=4",
    "federation.num_rounds=2",
    "federation.batch_size=8",
    "federation.local_epochs=1",
    "trainer=cpu",
    "trainer.num_threads=1",
)


@pytest.fixture(autouse=True)
def fresh_hydra():
    GlobalHydra.instance().clear()
    yield
    GlobalHydra.instance().clear()


def run(folder, *overrides):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        cfg = compose("train", [*SMALL, *overrides, f"paths.root={folder}"])
    experiment = build_experiment(cfg, OmegaConf.to_container(cfg, resolve=True), folder)
    progress, _ = experiment.begin()
    parts = (experiment.plan, experiment.server, experiment.executor, experiment.data, experiment.store)
    steps = list(run_rounds(*parts, progress))
    kept = [experiment.store.get(k) for k in experiment.store]
    return tree.tensors([steps[-1][0].state, kept]), [record for _, record in steps]


AGREE = {
    "fed2": ("algorithm=fed2", "structure.norm_shared=gn1"),
    "trimmed": (
        "algorithm=psi_net",
        "structure.norm_shared=none",
        "partition=iid",
        "algorithm/client=fedprox",
    ),
    "trimmed with its slices": (
        "algorithm=psi_net",
        "structure.norm_shared=none",
        "structure.boundary_pairing=paired",
        "structure.groups=2",
        "partition=subsets",
        "partition.classes=[[0,1],[2,3,4],[5,6],[7,8,9]]",
    ),
    "kept groups": ("arm=fed2_no_norm", "algorithm.client.softmax_scope=kept_groups"),
    "fusion and fedprox": ("algorithm=fedfusion_conv", "algorithm/client=fedfusion_fedprox"),
    "ot_fusion": ("algorithm=ot_fusion", "partition=iid"),
    "last personal": ("algorithm=fedavg", "algorithm.client.personal=[last]", "diagnostics=alignment"),
    "ditto": ("algorithm=ditto", "federation.evaluate_local=true"),
    "apfl": ("algorithm=apfl", "algorithm.client.adaptive=true", "federation.evaluate_local=true"),
    "pfedme": ("algorithm=pfedme", "algorithm.client.inner_steps=2"),
    "per_fedavg": ("algorithm=per_fedavg", "algorithm.client.alpha=0.1", "federation.evaluate_local=true"),
    "fedala": ("algorithm=fedala", "federation.evaluate_local=true"),
    "biases spared": ("algorithm=local", "optimizer=sgd_sparing_biases", "optimizer.weight_decay=0.3"),
}


@pytest.mark.parametrize("name", AGREE)
def test_weights_and_metrics_are_those_of_serial(name, tmp_path, monkeypatch):
    fits = []
    fit = StackedClients.fit
    monkeypatch.setattr(StackedClients, "fit", lambda self, *how: (fits.append(self), fit(self, *how))[1])
    expected = run(tmp_path / "serial", *AGREE[name])
    assert not fits
    found = run(tmp_path / "stacked", *AGREE[name], "executor=vectorized")
    assert fits
    # Weights of xavier heads without norm reach 10, where float32 has a digit less.
    scale = max(1.0, *(float(tensor.abs().max()) for tensor in expected[0] if tensor.is_floating_point()))
    assert_agree(found, expected, tolerance=scale * TOLERANCE)


def test_bf16_agrees_to_its_precision(tmp_path):
    case = ("algorithm=fedavg", "trainer.precision=bf16-mixed")
    expected = run(tmp_path / "serial", *case)
    found = run(tmp_path / "stacked", *case, "executor=vectorized")
    for mine, its in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=2e-3)
    assert any(not torch.equal(mine, its) for mine, its in zip(found[0], expected[0], strict=True))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_the_seed_does_not_decide_whether_mixed_steps_are_stacked(norm, seed, tmp_path):
    """Behind a norm, bfloat16 alone moves gradients of few examples by a tenth."""
    case = ("algorithm=fedavg", f"model.norm={norm}", "trainer.precision=bf16-mixed", f"seed={seed}")
    run(tmp_path, *case, "federation.num_rounds=1", "executor=vectorized")


@pytest.mark.parametrize(
    "case",
    [
        ("algorithm=fedavg", "model.norm=bn", "model.freeze=[norm]"),
        ("algorithm=fedfusion_multi", "model.norm=bn"),
    ],
)
def test_mixed_batch_norms_at_rest_agree(case, tmp_path):
    case = (*case, "trainer.precision=bf16-mixed")
    expected = run(tmp_path / "serial", *case)
    found = run(tmp_path / "stacked", *case, "executor=vectorized")
    for mine, its in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("algorithm=fedhenn",), "FedHeNNClient cannot be stacked: "),
        (("algorithm=fedma",), "FedMAClient cannot be stacked: its clients have networks of unequal widths"),
        (("algorithm=pfnm",), "PFNMClient cannot be stacked: "),
    ],
)
def test_methods_whose_turns_cannot_be_stacked_are_refused_at_the_start(overrides, reason, tmp_path):
    with pytest.raises(ConfigError) as caught:
        run(tmp_path, *overrides, "executor=vectorized")
    assert str(caught.value).startswith(f"executor must be another than vectorized here, for {reason}")
