"""Configurations that are refused for what they say, before any work.

One readable sentence, a non-zero exit code, and not a byte of an earlier run changed.
"""

import subprocess
import sys

import pytest
from refusals import command, digest, refused, refused_at_start

from fedfeat.errors import ConfigError

# An earlier finished run in the same directory makes no difference to any of them.
BEFORE_ANY_WORK = [
    (
        "a target that is not measured",
        "federation.target_metric=local_pre_agg/acc_mean",
        r"federation\.target_metric must be measured \(federation\.evaluate_local true does so\), but it is 'local",
    ),
    (
        "unknown key",
        "federation.num_clint=3",
        r"federation\.num_clint must be a known key, but there is none of that name; known there: num_",
    ),
    (
        "unknown key at the top",
        "sed=3",
        r"sed must be a known key, but there is none of that name; known there: name",
    ),
    (
        "unknown group option",
        "model=nothing",
        r"model must be one of digits_cnn, .*, but it is 'nothing'",
    ),
    (
        "unknown preset",
        "experiment=nothing",
        r"experiment must be one of cifar10_10x5, .*, but it is 'nothing'",
    ),
    ("unknown logger", "logger=nothing", r"logger must be one of all, comet, .*, but it is 'nothing'"),
    (
        "unknown logger in a list",
        "logger=[csv,nothing]",
        r"logger must be one of all, comet, .*, but it is 'nothing'",
    ),
    (
        "forced unknown key of a group without target",
        "+federation.nu=1",
        r"federation\.nu must be a known key, but there is none of that name; known there: num_",
    ),
    (
        "wrong type",
        "federation.num_rounds=many",
        r"federation\.num_rounds must be an integer of at least 0, but it is 'many'",
    ),
    (
        "unfinished list",
        "federation.targets=[0.5",
        r"federation\.targets=\[0\.5 must be .*, but it is not: no viable alternative at inpu",
    ),
    (
        "no value",
        "seed",
        r"seed must be key=value as Hydra's .*, but it is not: missing EQUAL at '<EOF>'",
    ),
    (
        "forced unknown key of a scenario",
        "+scenario.nu=1",
        r"scenario\.nu must be a known key, but there is none of that name; known there: straggler_fr",
    ),
    (
        "an argument of Lightning's Trainer that is decided elsewhere",
        "+trainer.max_epochs=3",
        r"trainer\.max_epochs must be left to federation\.local_epochs and federation\.local_steps, but it is 3",
    ),
    ("an arm that is an algorithm", "algorithm=fed2_bn", r"algorithm must be one of .*, but it is 'fed2_bn'"),
    (
        "an arm of another algorithm",
        "arm=fed2_bn",
        r"arm must be none beside algorithm=fedavg, but it is 'fed2_bn'",
    ),
    ("removed key", "~seed", r"seed must be present, but the configuration has no such key\."),
    (
        "removed key of a group without target",
        "~federation.eval_every",
        r"federation\.eval_every must be present, but the configuration has no such key\.",
    ),
    ("removed group", "~schedule", r"schedule must be present, but the configuration has no such key\."),
    (
        "a launcher that nothing uses",
        "hydra/launcher=submitit_local",
        r"hydra/launcher must be basic (without --multirun, which starts jobs|where the extra .*), but it is",
    ),
    (
        "a type that is not the key's",
        "hydra.job.chdir=maybe",
        r"hydra\.job\.chdir must be of its type, but it is not: ",
    ),
    ("missing value", "seed=???", r"seed must be set, but it is '\?\?\?'"),
    (
        "dangling interpolation",
        "seed=${nowhere.seed}",
        r"seed must have a value, but it has none: Interpolation key 'nowhere\.",
    ),
    (
        "forced unknown key at the top",
        "+nothing=1",
        r"nothing must be a known key, but there is none of that name; known there: name, group, seed",
    ),
    (
        "forced unknown section",
        "+nothing.at.all=1",
        r"nothing must be a known key, but there is none of that name; known there: name, group, seed",
    ),
    ("number for a section", "federation=3", r"federation must be one of default, fine_tuned, but it is 3"),
    (
        "null for a section",
        "federation=null",
        r"federation must be one of default, fine_tuned, but it is None",
    ),
    ("number for a half", "algorithm/client=3", r"algorithm/client must be one of .*fedavg, .*, but it is 3"),
    ("number in a list", "logger=[csv,3]", r"logger must be one of all, comet, .*, but it is 3"),
    ("number in a sweep", "--multirun model=mlp,3", r"model must be one of digits_cnn, .*, but it is 3"),
    (
        "text over a section",
        "optimizer.lr.x=3",
        r"optimizer\.lr\.x must be a known key, but there is none of that name; known there: none",
    ),
    ("negative seed", "seed=-1", r"seed must be an integer of at least 0, but it is -1"),
    ("resume perhaps", "resume=perhaps", r"resume must be one of auto, never, repair, but it is 'perhaps'"),
    ("debug perhaps", "debug=perhaps", r"debug must be one of default, fdr, .*, but it is 'perhaps'"),
    ("trace perhaps", "trace=perhaps", r"trace must be true or false, but it is 'perhaps'"),
    (
        "no clients",
        "federation.num_clients=0",
        r"federation\.num_clients must be an integer of at least 1, but it is 0",
    ),
    (
        "half a client",
        "federation.num_clients=1.5",
        r"federation\.num_clients must be an integer of at least 1, but it is 1\.5",
    ),
    (
        "negative rounds",
        "federation.num_rounds=-1",
        r"federation\.num_rounds must be an integer of at least 0, but it is -1",
    ),
    ("fraction 0", "federation.fraction=0", r"federation\.fraction must be in \(0, 1\], but it is 0"),
    ("fraction 1.5", "federation.fraction=1.5", r"federation\.fraction must be in \(0, 1\], but it is 1\.5"),
    (
        "cohort larger than clients",
        "federation.cohort_size=5",
        r"federation\.cohort_size must be at most federation\.num_clients \(4\), but it is 5",
    ),
    (
        "both cohort and fraction",
        "federation.cohort_size=2 federation.fraction=0.5",
        r"federation\.fraction must be null beside .*, but it is 0\.5",
    ),
    (
        "batch 0",
        "federation.batch_size=0",
        r"federation\.batch_size must be an integer of at least 1, but it is 0",
    ),
    (
        "no epochs",
        "federation.local_epochs=0",
        r"federation\.local_epochs must be in \(0, inf\), but it is 0",
    ),
    (
        "both epochs and steps",
        "federation.local_steps=2",
        r"federation\.local_steps must be null .*, but it is 2",
    ),
    (
        "neither epochs nor steps",
        "federation.local_epochs=null",
        r"federation\.local_epochs must be set .*, but it is None",
    ),
    (
        "opt_state maybe",
        "federation.opt_state=maybe",
        r"federation\.opt_state must be one of reset, keep, but it is 'maybe'",
    ),
    (
        "eval_every 0",
        "federation.eval_every=0",
        r"federation\.eval_every must be an integer of at least 1, but it is 0",
    ),
    ("target 2", "federation.targets=[2]", r"federation\.targets must be a list in .*, but it is \[2\]"),
    (
        "on_client_error perhaps",
        "federation.on_client_error=perhaps",
        r"federation\.on_client_error must be one of raise, skip, but it is 'perhaps'",
    ),
    (
        "all stragglers",
        "scenario.straggler_fraction=1 scenario.straggler_policy=drop",
        r"scenario\.straggler_fraction must be below 1 beside scenario\.straggler_policy=drop, .*, but it is 1",
    ),
    ("learning rate -1", "optimizer.lr=-1", r"optimizer\.lr must be in \(0, inf\), but it is -1"),
    ("learning rate 0", "optimizer.lr=0", r"optimizer\.lr must be in \(0, inf\), but it is 0"),
    ("learning rate nan", "optimizer.lr=nan", r"optimizer\.lr must be in \(0, inf\), but it is nan"),
    ("momentum 1", "optimizer.momentum=1", r"optimizer\.momentum must be in \[0, 1\), but it is 1"),
    (
        "clipping -1",
        "trainer.gradient_clip_val=-1",
        r"trainer\.gradient_clip_val must be in \(0, inf\), but it is -1",
    ),
    (
        "precision 12-bit",
        "trainer.precision=12-bit",
        r"trainer\.precision must be one of .*, but it is '12-bit'",
    ),
    (
        "more classes per client than there are",
        "partition=n_classes partition.classes_per_client=30",
        r"partition\.classes_per_client must be between 1 and the 3 classes, but it is 30\.$",
    ),
    (
        "more groups than classes",
        "algorithm=fed2 structure.groups=11",
        r"structure\.groups must be between 1 and the 3 classes, but it is 11\.$",
    ),
    (
        "a key of another option",
        "partition.alpha=0.3",
        r"partition\.alpha must be a known key, .*; it is a key of .*partition=dirichlet, .*quantity_skew\.$",
    ),
    (
        "a preset that is not there",
        "experiment=fed2/t1_vgg",
        r"experiment must be one of fed2/ablation, .* but it is 'fed2/t1_vgg'; did you mean fed2/t1_vgg9 ",
    ),
    ("no devices", "trainer.devices=0", r"trainer\.devices must be a number of .*, but it is 0"),
    (
        "threads 0",
        "trainer.num_threads=0",
        r"trainer\.num_threads must be an integer of at least 1, but it is 0",
    ),
    (
        "resume never",
        "resume=never",
        r"hydra\.run\.dir must be a new directory under resume=never, but .*/run holds a run",
    ),
    (
        "another configuration",
        "seed=7",
        r"hydra\.run\.dir must be a new directory .*, but .*/run holds a run with seed=0 instead of 7",
    ),
]

# What only the part's constructor knows, which has to be imported.
BEFORE_DATA = [
    ("gamma 2", "schedule=step schedule.gamma=2", r"schedule\.gamma must be in \(0, 1\], but it is 2"),
    (
        "alpha 0",
        "partition=dirichlet partition.alpha=0",
        r"partition\.alpha must be in \(0, inf\), but it is 0",
    ),
    (
        "val_fraction 1",
        "partition.val_fraction=1",
        r"partition\.val_fraction must be in \[0, 1\), but it is 1",
    ),
    (
        "mu -1",
        "algorithm=fedprox algorithm.client.mu=-1",
        r"algorithm\.client\.mu must be in \[0, inf\), but it is -1",
    ),
    (
        "weighting foo",
        "algorithm.server.weighting=foo",
        r"algorithm\.server\.weighting must be one of samples, uniform, but it is 'foo'",
    ),
    (
        "nearly a key of a part",
        "partition=dirichlet +partition.alhpa=1",
        r"partition\.alhpa must be a known key, but there is none of that name; known there: val_fraction, alpha",
    ),
    (
        "a key of another part",
        "schedule=cosine +schedule.gamma=0.9",
        r"schedule\.gamma must be a known key, but there is none of that name; known there: floor, warmup",
    ),
    (
        "dropout 2",
        "model=vgg9 model.dropout=2",
        r"model\.dropout must be at least 0 and below 1, but it is 2",
    ),
    (
        "text for a number of torch's own",
        "optimizer=adam +optimizer.eps=small",
        r"optimizer\.eps must be a number, but it is 'small'",
    ),
    (
        "an optimizer's own rule",
        "optimizer.momentum=0 +optimizer.nesterov=true",
        r"optimizer must be what torch\.optim\.SGD takes, but that says: Nesterov momentum requires",
    ),
    (
        "a callback's own rule",
        "callbacks=timer callbacks.timer.duration=long",
        r"callbacks\.timer must be what pytorch_lightning\.\S+ takes, but that says: .* not a valid duration",
    ),
    (
        "size of a hidden layer",
        "model=mlp model.hidden=0",
        r"model\.hidden must be a list in which each must be a pos",
    ),
    (
        "no network of torchvision",
        "model=torchvision model.arch=resnet81",
        r"model\.arch must be resnet10, or a torchvision model of resnet, .*, but it is 'resnet81'\.$",
    ),
    (
        "shares of a pool",
        "pool=hetero_cnn pool.shares={A1:2}",
        r"pool\.shares must add up to 1, but it is \{'A1': 2\}",
    ),
    (
        "two ways to skew",
        "partition=quantity_skew partition.alpha=1 partition.power=1",
        r"partition\.alpha must be null exactly when partition\.power is given, but it is 1",
    ),
    (
        "network of a pool",
        "pool=hetero_cnn pool.models.A2.arch=A9",
        r"pool\.models\.A2\.arch must be one of A1, A2, A3, A4, A5, but it is 'A9'",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "sentence"), [row[1:] for row in BEFORE_ANY_WORK], ids=[row[0] for row in BEFORE_ANY_WORK]
)
def test_refused_before_any_work(cli, small, finished, tmp_path, overrides, sentence):
    before = digest(finished)
    refused(cli(*command(small, overrides, tmp_path)), sentence)
    assert digest(finished) == before


@pytest.mark.parametrize(
    ("overrides", "sentence"), [row[1:] for row in BEFORE_DATA], ids=[row[0] for row in BEFORE_DATA]
)
def test_refused_before_data_are_read(cli, small, tmp_path, overrides, sentence):
    """There are no data: reading them would be refused with another sentence."""
    without = "data=image_folder data.root={root}/nothing "
    refused_at_start(cli, small, without + overrides, tmp_path, sentence)


SLOW_IMPORTS = {
    "torch",
    "torchvision",
    "torchmetrics",
    "pytorch_lightning",
    "scipy",
    "sklearn",
    "matplotlib",
    "wandb",
    "ray",
}


@pytest.mark.parametrize("words", [["federation.num_rounds=many"], ["trainer.precision=12-bit"], ["--help"]])
def test_what_needs_no_constructor_imports_nothing_slow(words, tmp_path):
    code = (
        "import sys, fedfeat.train\n"
        "try:\n    fedfeat.train.main()\nexcept SystemExit as stop:\n    print(stop.code)\n"
        f"print(sorted({SLOW_IMPORTS!r} & {{*sys.modules}}))"
    )
    arguments = [sys.executable, "-c", code, *words, f"hydra.run.dir={tmp_path / 'run'}"]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[-1] == "[]"
    assert (shown[-2] == "2") == (words != ["--help"])


def test_a_primary_configuration_that_is_not_there(cli):
    refused(cli("--config-name=foo"), r"--config-name must be one of train, but it is 'foo'\.$")


def test_debug_shows_the_stack(cli, small):
    with pytest.raises(
        ConfigError, match=r"^partition\.min_size must be between 1 and 15 .*, but it is 1000\.$"
    ):
        cli(*small, "partition=dirichlet", "partition.min_size=1000", "debug=true")
