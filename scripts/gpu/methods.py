"""Every method of the repository in a small setting that draws nothing on the device: no dropout, no augmentation."""

BASE = (
    "data=synthetic", "data.loader.shape=[1,8,8]", "data.loader.num_classes=4", "data.loader.num_train=60",
    "data.loader.num_test=24", "data.loader.signal=0.3", "partition=quantity_skew", "partition.min_size=5",
    "model=digits_cnn", "model.width=4", "model.hidden=8", "optimizer.lr=0.05", "optimizer.momentum=0.5",
    "federation.num_clients=4", "federation.num_rounds=2", "federation.batch_size=4", "federation.local_epochs=1",
    "trainer=default", "trainer.num_threads=1",
)  # fmt: skip

NARROW = {"32-true": (1e-4, False), "32-true with TF32": (2e-2, True), "bf16-mixed": (5e-2, False)}
"""Precisions of FedAvg beside float64: tolerance, and whether TensorFloat-32 is allowed."""

_OWN = ("federation.cohort_size=3", "federation.evaluate_local=true")
_HEADS = ("federation.local_epochs=2", *_OWN)
_MLP = ("model=mlp", "~model.width", "model.hidden=[8,6]")
_PAIR = (
    *_MLP, "pool=hetero_cnn", "pool.shares={deep:0.6,wide:0.4}",
    "+pool.models.deep={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[8,6]}",
    "+pool.models.wide={_target_:fedfeat.models.mlp.mlp,_partial_:true,hidden:[6]}",
)  # fmt: skip
_GROUPS = (
    "structure.depth=1", "structure.groups=4", "partition=n_classes", "partition.classes_per_client=2",
    "~partition.min_size",
)  # fmt: skip
_HENN = ("algorithm.server.rad_size=12", "algorithm.client.rad_batch=6")
_MATCHED = (*_MLP, "federation.num_rounds=3", "optimizer.momentum=0")

METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedprox": ("algorithm.client.mu=0.5",),
    "scaffold": _OWN[:1],
    "fednova": ("scenario.straggler_fraction=0.5",),
    "feddyn": _OWN[:1],
    "moon": _OWN[:1],
    "fedrod": _OWN[:1],
    "fed2": _GROUPS,
    "psi_net": _GROUPS,
    "fedfusion_conv": _OWN,
    "fedhenn": _HENN,
    "fedhenn_hetero": (*_HENN, *_PAIR, "algorithm.client.rad_batch=null"),
    "fedma": _MATCHED,
    "pfnm": _MLP,
    "ot_fusion": _MLP,
    "fedrep": ("algorithm.client.head_epochs=1", *_HEADS),
    "fedbabu": ("federation.final_epochs=1", *_OWN),
    "lg_fedavg": (*_PAIR, "pool.head_width=5"),
    "apfl": ("algorithm.client.adaptive=true", *_OWN),
    "ditto": _OWN,
    "per_fedavg": ("algorithm.client.alpha=0.1", *_OWN),
    "pfedme": _OWN,
    "fedala": _OWN,
    "fedproto": (*_PAIR, *_OWN),
    "fedtgp": _PAIR,
    "fedgh": _PAIR,
    "fedpac": _HEADS,
    "fd": _PAIR,
    "feddf": (*_PAIR, "algorithm.server.steps=9"),
    "fedmd": (*_PAIR, "algorithm.client.digest_batch=5"),
    "heterofl": ("structure.levels=[1.0,0.5,0.25]", "model.norm=bn"),
    "fedrolex": ("structure.levels=[0.5,0.25]",),
    "local": (),
    "centralized": (),
    **dict.fromkeys(("fedavgm", "fedadagrad", "fedadam", "fedyogi"), ()),
    **dict.fromkeys(("fedfusion_multi", "fedfusion_single"), _OWN),
    **dict.fromkeys(("fedma_independent", "fedma_oneshot"), _MATCHED),
    "fed2_fedadam": ("structure=trimmed", *_GROUPS),
    **dict.fromkeys(("fed2_unpaired", "fed2_literal"), _GROUPS),
    # What follows are settings of the ones above.
    **dict.fromkeys(
        ("fedavg_uniform", "fedavg_restricted", "fedprox_mu0005", "fedprox_mu001", "fedprox_mu01"), ()
    ),
    **dict.fromkeys(("fedadagrad_code", "fedadam_code", "fedyogi_code"), ()),
    **dict.fromkeys(
        ("fedfusion", "fedfusion_conv_code", "fedfusion_multi_code", "fedfusion_single_code"), _OWN
    ),
}
