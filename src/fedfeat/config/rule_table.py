"""What the keys must satisfy that belong to no part, as one table; a part's own are in its constructor's types."""

from typing import NamedTuple

from fedfeat.config.conditions import (
    BOOL,
    FOLDER,
    TEXT,
    Condition,
    any_of,
    integer,
    interval,
    list_of,
    one_of,
)


class Rule(NamedTuple):
    """A dotted key and what its value, or where it is optional null, must satisfy if it is there: groups differ."""

    key: str
    test: Condition
    optional: bool = False


_INDICES = list_of(integer(0))
_DEVICES = any_of(
    *(integer(1), one_of("auto", -1)),
    Condition(lambda value: bool(value) and _INDICES.holds(value), "", {**_INDICES.schema, "minItems": 1}),
    text="be a number of devices, -1, auto or a list of indices",
)
# The values of Lightning's Trainer(precision=...); written out because importing it imports torch.
_PRECISION = one_of(
    *("transformer-engine", "transformer-engine-float16", "16-true", "16-mixed", "bf16-true", "bf16-mixed"),
    *("32-true", "64-true", "64", "32", "16", "bf16", 64, 32, 16),
)
_BATCHES = any_of(integer(1), interval("(0, 1]"), text="be a number of batches or a share of them in (0, 1]")
_POSITIVE = interval("(0, inf)")
_SHARE = interval("[0, 1)")
_SWITCHES = (
    *("deterministic", "channels_last", "compile", "detect_anomaly"),
    *("barebones", "sync_batchnorm", "benchmark"),
)

# Arguments of Lightning's Trainer that are decided elsewhere, by who decides them.
_OWNED = {
    "federation.local_epochs and federation.local_steps": (
        *("max_epochs", "max_steps", "min_epochs", "min_steps"),
    ),
    "federation.eval_every, without Lightning's loops": (
        *("limit_val_batches", "limit_test_batches", "limit_predict_batches", "num_sanity_val_steps"),
        *("val_check_interval", "check_val_every_n_epoch", "inference_mode"),
    ),
    "federation.checkpoint_every": ("enable_checkpointing", "model_registry"),
    "the group logger": ("logger", "log_every_n_steps", "enable_autolog_hparams"),
    "the group callbacks": ("callbacks", "enable_progress_bar", "enable_model_summary"),
    "hydra.run.dir": ("default_root_dir",),
    "debug=fdr": ("fast_dev_run",),
    "debug=overfit": ("overfit_batches",),
    "the clients, whose batches are drawn anew in every round": (
        *("use_distributed_sampler", "reload_dataloaders_every_n_epochs"),
    ),
}


KEYS = (
    *("name", "group", "seed", "trace", "resume", "objective"),
    *("data", "public", "partition", "model", "structure", "pool", "algorithm", "sampler"),
    *("optimizer", "schedule", "trainer", "callbacks", "executor"),
    *("federation", "scenario", "diagnostics", "logger", "paths", "arms", "published"),
)
"""All keys at the top. Only presets have the last two: settings of single algorithms, to which others refer, and a
paper's numbers (`runs.finished.published_numbers`)."""

RULES = (
    Rule("seed", integer(0)),
    Rule("name", TEXT),
    Rule("group", TEXT),
    Rule("trace", BOOL),
    *(Rule(f"paths.{name}", FOLDER) for name in ("root", "logs", "cache")),
    Rule("resume", one_of("auto", "never", "repair")),
    Rule("objective", TEXT),
    Rule("federation.num_clients", integer(1)),
    Rule("federation.held_out", integer(0)),
    Rule("federation.num_rounds", integer(0)),
    Rule("federation.cohort_size", integer(1), optional=True),
    Rule("federation.fraction", interval("(0, 1]"), optional=True),
    Rule("federation.local_epochs", _POSITIVE, optional=True),
    Rule("federation.local_steps", integer(1), optional=True),
    Rule("federation.batch_size", integer(1), optional=True),
    Rule("federation.opt_state", one_of("reset", "keep")),
    Rule("federation.final_epochs", _POSITIVE, optional=True),
    Rule("federation.on_client_error", one_of("raise", "skip")),
    Rule("federation.eval_every", integer(1)),
    Rule("federation.eval_batch_size", integer(1)),
    Rule("federation.evaluate_local", BOOL),
    Rule("federation.checkpoint_every", integer(1)),
    Rule("federation.ram_budget_mb", _POSITIVE),
    Rule("federation.targets", list_of(interval("(0, 1]"))),
    Rule("federation.target_metric", TEXT, optional=True),
    Rule("federation.stop_at", interval("(0, 1]"), optional=True),
    Rule("scenario.straggler_fraction", interval("[0, 1]")),
    Rule("scenario.straggler_least", integer(1)),
    Rule("scenario.straggler_policy", one_of("partial", "drop")),
    Rule("scenario.weak_fraction", _SHARE),
    Rule("scenario.reduced_fraction", interval("[0, 1]")),
    Rule("scenario.reduced_to", interval("(0, 1]")),
    Rule("model.weights", TEXT, optional=True),
    Rule("model.fresh", list_of(TEXT)),
    Rule("model.freeze", list_of(TEXT)),
    Rule("model.cached", BOOL),
    Rule("algorithm.public_share", _SHARE, optional=True),
    Rule("optimizer.lr", _POSITIVE),
    Rule("optimizer.momentum", _SHARE),
    Rule("optimizer.weight_decay", interval("[0, inf)")),
    Rule("trainer.accelerator", TEXT),
    Rule("trainer.devices", _DEVICES),
    Rule("trainer.strategy", TEXT),
    Rule("trainer.precision", _PRECISION),
    Rule("trainer.gradient_clip_val", _POSITIVE, optional=True),
    Rule("trainer.gradient_clip_algorithm", one_of("norm", "value")),
    Rule("trainer.num_threads", integer(1), optional=True),
    Rule("trainer.limit_train_batches", _BATCHES, optional=True),
    Rule("trainer.accumulate_grad_batches", integer(1)),
    Rule("trainer.num_nodes", integer(1)),
    Rule("logger.wandb.mode", one_of("online", "offline", "shared", "disabled")),
    *(Rule(f"trainer.{name}", BOOL) for name in _SWITCHES),
    *(
        Rule(f"trainer.{name}", Condition(lambda _: False, f"be left to {owner}", {"not": {}}))
        for owner, names in _OWNED.items()
        for name in names
    ),
)

BESIDE = tuple(rule.key for rule in RULES if rule.key.startswith("model."))
"""Keys of a section that makes a part which are none of the part's arguments."""

REQUIRED = (
    *(key for key in KEYS if key not in ("arms", "published", "public")),
    *(rule.key for rule in RULES if rule.key.startswith(("federation.", "scenario."))),
    *("algorithm.name", "algorithm.pooled", "algorithm.client", "algorithm.server"),
    *("data.loader", "data.transform", "paths.cache"),
)
"""Keys that are read whatever the groups are; any other may be removed where its constructor has a default."""
