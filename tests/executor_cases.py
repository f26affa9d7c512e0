"""Every algorithm in a setting of its own, run by any executor: the suite that all executors pass."""

import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from fedfeat.commands.assembly import build_experiment
from fedfeat.config.choices import CONFIGS

BASE = [
    "data=synthetic", "data.loader.shape=[1,4,4]", "data.loader.num_classes=4", "data.loader.num_train=60",
    "data.loader.num_test=24", "data.loader.signal=0.3", "partition=quantity_skew", "partition.min_size=5",
    "model=mlp", "model.hidden=[8,6]", "optimizer.lr=0.1", "optimizer.momentum=0.5", "federation.num_clients=5",
    "federation.num_rounds=1", "federation.batch_size=4", "federation.local_epochs=2",
    "federation.checkpoint_every=100", "trainer=cpu", "trainer.num_threads=1",
]  # fmt: skip
# What clients keep comes back to them in the second round.
KEPT = ["federation.num_rounds=2"]
HENN = ["algorithm.server.rad_size=12", "algorithm.client.rad_batch=6", "federation.final_epochs=1", *KEPT]
# In a survey of 12 inputs the one answers in factors of 6 numbers, the other with a matrix.
POOL = [
    "pool=hetero_cnn", "pool.shares={deep:0.6,wide:0.4}",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6],dropout:0.2}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[16]}",
]  # fmt: skip
OWN = ["federation.cohort_size=3", "federation.evaluate_local=true", "federation.final_epochs=1", *KEPT]
# Last layers that read as many numbers.
SAME_WIDTH = [POOL[0], POOL[1], POOL[2], POOL[3].replace("[16]", "[6]")]
GROUPS = ["structure.depth=1", "partition=n_classes", "partition.classes_per_client=2", "~partition.min_size"]
IMAGES = ["data.loader.shape=[1,8,8]", "model=digits_cnn", "~model.hidden"]

CASES = {
    "fedavg": [
        "algorithm=fedavg",
        "federation.cohort_size=3",
        "model.dropout=0.3",
        "federation.num_rounds=2",
    ],
    "fedavg_kept_momentum": ["algorithm=fedavg", "federation.opt_state=keep", *KEPT],
    "fedavg_stragglers": ["algorithm=fedavg", "scenario.straggler_fraction=0.5"],
    "fedavg_augmented": [
        "algorithm=fedavg",
        "data/transform=cifar_fedma",
        *IMAGES,
        "data.loader.shape=[3,8,8]",
    ],
    "fedavg_adam": ["algorithm=fedavg", "optimizer=adam", "optimizer.lr=0.01", "~optimizer.momentum"],
    "fedprox": ["algorithm=fedprox", "algorithm.client.mu=0.5"],
    "scaffold": ["algorithm=scaffold", "federation.cohort_size=3", "model.dropout=0.3", *KEPT],
    "fednova": ["algorithm=fednova", "scenario.straggler_fraction=0.5", *KEPT],
    "feddyn": ["algorithm=feddyn", "federation.cohort_size=3", "federation.ram_budget_mb=0", *KEPT],
    "moon": [
        "algorithm=moon",
        "federation.cohort_size=3",
        "federation.ram_budget_mb=0",
        "model.dropout=0.3",
        *KEPT,
    ],
    "fedrod": [
        "algorithm=fedrod",
        "federation.cohort_size=3",
        "federation.ram_budget_mb=0",
        "model.dropout=0.3",
        *KEPT,
    ],
    "restricted": ["algorithm=fedavg_restricted"],
    "personal_head": [
        "algorithm=fedavg",
        "algorithm.client.personal=[last]",
        "federation.ram_budget_mb=0",
        *KEPT,
    ],
    "local": ["algorithm=local", *KEPT],
    "fed2": ["algorithm=fed2", *GROUPS],
    "psi_net": ["algorithm=psi_net", *GROUPS],
    "heterofl": [
        "algorithm=heterofl",
        "structure.levels=[1.0,0.5,0.25]",
        "structure.dynamic=true",
        "federation.cohort_size=4",
        "federation.evaluate_local=true",
        *IMAGES[:2],
        "model.hidden=8",
        "model.norm=bn",
        *KEPT,
    ],
    "fedrolex": [
        "algorithm=fedrolex",
        "structure.levels=[0.6,0.3]",
        "model.dropout=0.3",
        "federation.num_rounds=3",
        "federation.cohort_size=3",
    ],
    "fed2_fedadam": [
        "algorithm=fed2_fedadam",
        "structure=trimmed",
        "federation.cohort_size=2",
        *GROUPS,
        *KEPT,
    ],
    "psi_net_paired": ["algorithm=psi_net", "structure.boundary_pairing=paired", *GROUPS, *IMAGES, *KEPT],
    "fedfusion": ["algorithm=fedfusion_conv", "federation.evaluate_local=true", *IMAGES],
    "fedrep": ["algorithm=fedrep", "algorithm.client.head_epochs=1", "federation.evaluate_local=true", *KEPT],
    "fedbabu": ["algorithm=fedbabu", "federation.final_epochs=2", "federation.cohort_size=3", *KEPT],
    "lg_fedavg": ["algorithm=lg_fedavg", *POOL, "pool.head_width=5", "federation.cohort_size=3", *KEPT],
    "apfl": ["algorithm=apfl", "algorithm.client.adaptive=true", "model.dropout=0.3", *OWN],
    "ditto": ["algorithm=ditto", "model.dropout=0.3", *OWN],
    "fedhenn": ["algorithm=fedhenn", *HENN],
    "fedhenn_hetero": [
        "algorithm=fedhenn_hetero",
        *HENN,
        *POOL,
        "algorithm.client.rad_batch=null",
        "federation.evaluate_local=true",
    ],
    "per_fedavg": ["algorithm=per_fedavg", "algorithm.client.alpha=0.1", *OWN],
    "pfedme": ["algorithm=pfedme", "algorithm.server.beta=0.7", "model.dropout=0.3", *OWN],
    "fedala": ["algorithm=fedala", "federation.num_rounds=3", "model.dropout=0.3", *OWN[:-1]],
    "fedproto": [
        "algorithm=fedproto",
        "federation.cohort_size=3",
        "federation.evaluate_local=true",
        *SAME_WIDTH,
        *KEPT,
    ],
    "fedtgp": [
        "algorithm=fedtgp",
        "algorithm.client.proto_from=before",
        "federation.cohort_size=3",
        *SAME_WIDTH,
        *KEPT,
    ],
    "fedgh": ["algorithm=fedgh", "federation.cohort_size=3", *SAME_WIDTH, *KEPT],
    "fedpac": [
        "algorithm=fedpac",
        "federation.cohort_size=3",
        "federation.evaluate_local=true",
        "model.dropout=0.3",
        *KEPT,
    ],
    "fd": ["algorithm=fd", "federation.cohort_size=3", *POOL, *KEPT],
    "feddf": [
        "algorithm=feddf",
        "algorithm.server.steps=9",
        "federation.cohort_size=3",
        *POOL,
        *KEPT,
    ],
    "fedmd": ["algorithm=fedmd", "algorithm.client.digest_batch=5", *OWN, *POOL],
    "fedma": ["algorithm=fedma", "federation.num_rounds=3", "optimizer.momentum=0"],
    "fedma_independent": ["algorithm=fedma_independent", "federation.num_rounds=3", "optimizer.momentum=0"],
    "fedma_oneshot": ["algorithm=fedma_oneshot"],
    "pfnm": ["algorithm=pfnm"],
    "ot_fusion": ["algorithm=ot_fusion"],
    "payloads_that_differ_in_a_number": [
        "algorithm=fedavg",
        "algorithm.client._target_=scaled.ScaledClient",
        "algorithm.server._target_=scaled.ScalingServer",
    ],
}


_SPLITS = tempfile.mkdtemp(prefix="splits-")


@cache
def serial(name: str):
    """What `run` gives of a case in one process, the reference."""
    with tempfile.TemporaryDirectory() as folder:
        return run(Path(folder), CASES[name], "serial")


def run(folder: Path, overrides: list[str], executor: str, *more: str):
    """Run a case in a folder; give its summary, less what a clock makes of it, and its weights' digest."""
    places = [f"paths.root={folder}", f"paths.cache={_SPLITS}"]
    cfg = OmegaConf.merge(composed(*merged(overrides)), OmegaConf.from_dotlist(places))
    cfg.executor = OmegaConf.load(CONFIGS / "executor" / f"{executor}.yaml")
    cfg.merge_with_dotlist(list(more))
    folder.mkdir(parents=True, exist_ok=True)
    experiment = build_experiment(cfg, OmegaConf.to_container(cfg, resolve=True), folder)
    with ExitStack() as stack:
        summary = experiment.run(stack)
    final = {name: value for name, value in summary["final"].items() if not name.startswith("time/")}
    return summary["weights_sha256"], final


@cache
def composed(*overrides: str):
    """Compose the configuration of a case, which all executors share."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", list(overrides))


def merged(overrides: list[str]) -> list[str]:
    """The base's overrides with a case's, of which the last one of a key counts; ``~key`` takes it away."""
    found: dict[str, str] = {}
    for override in [*BASE, *overrides]:
        if override.startswith("~"):
            found.pop(override[1:], None)
        else:
            found[override.partition("=")[0]] = override
    return list(found.values())
