"""Every file under configs/ composes, every target in it exists, and every small experiment runs."""

import inspect

import numpy as np
import pytest
from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf
from presets import composed
from tweets import tiny_tweets

from fedfeat.commands.starts import Start
from fedfeat.config.rules import check
from fedfeat.config.spaces import SPACES
from fedfeat.train import CONFIGS

# Groups whose folders are part of the option's name: experiment=<paper>/<table>.
PRESETS = ("experiment", "sweep")


def options():
    """Every file but the primary one, as (group, option)."""
    files = sorted(path.relative_to(CONFIGS).with_suffix("") for path in CONFIGS.rglob("*.yaml"))
    # Search spaces are no part of a run: tests/configs/test_spaces.py.
    return [(path.parent.as_posix(), path.name) for path in files if path.parts[0] not in (path.name, SPACES)]


OPTIONS = options()
# What presets share is run by them.
EXPERIMENTS = sorted(
    path.relative_to(CONFIGS / "experiment").with_suffix("").as_posix()
    for path in (CONFIGS / "experiment").rglob("*.yaml")
    if not path.stem.startswith("base")
)


# What an option needs beside it, because the default data have 10 classes and the default clients 3 of them.
BESIDE = {
    "arm=groups_20": ["data=cifar100", "partition=iid"],
    "arm=groups_100": ["data=cifar100", "partition=iid"],
    "data=cifar100": ["partition=iid"],
    "data=sent140": ["partition=iid"],
    "partition=subsets": ["federation.num_clients=2"],
    "partition/inner=subsets": ["federation.num_clients=2"],
}


def overrides(group, option):
    """What swaps an option in."""
    top = group.split("/")[0]
    if top in PRESETS:
        return [f"{top}={'/'.join([*group.split('/')[1:], option])}"]
    word = f"{group}={option}"
    return [*(["partition=permuted"] if group == "partition/inner" else []), word, *BESIDE.get(word, [])]


def calls(node):
    """All nodes that have a ``_target_``."""
    if isinstance(node, dict):
        own = [node] if "_target_" in node else []
        return own + [call for child in node.values() for call in calls(child)]
    if isinstance(node, list):
        return [call for child in node for call in calls(child)]
    return []


@pytest.mark.parametrize(("group", "option"), OPTIONS, ids=[f"{group}={option}" for group, option in OPTIONS])
def test_every_option_composes_and_keeps_the_rules(group, option):
    config = composed(*overrides(group, option))
    check(config)
    assert calls(config)
    # What a network starts from is of any network, and of no builder.
    config["model"] = {key: value for key, value in config["model"].items() if key not in Start._fields}
    for call in calls(config):
        target = get_object(call["_target_"])
        assert callable(target), call["_target_"]
        accepts_all_names(target, call)


def accepts_all_names(target, call):
    """A key that the constructor does not take would only be noticed at the end of a long start."""
    parameters = inspect.signature(target).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    unknown = {key for key in call if not key.startswith("_")} - set(parameters)
    assert not unknown, f"{call['_target_']} does not take {unknown}"


SHAPES = {"digits": ([1, 8, 8], 10), "mnist": ([1, 28, 28], 10), "fashion_mnist": ([1, 28, 28], 10),
          "cifar10": ([3, 32, 32], 10), "cifar100": ([3, 32, 32], 100)}  # fmt: skip


def random_images(name):
    """Overrides that put a few random images of the shape of a data set in its place."""
    shape, num_classes = SHAPES[name]
    return [
        "data=synthetic", f"data.loader.shape={str(shape).replace(' ', '')}",
        f"data.loader.num_classes={num_classes}", f"data.loader.num_train={max(300, 10 * num_classes)}",
        f"data.loader.num_test={max(20, 2 * num_classes)}",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_mini_form_of_every_experiment_runs_a_round(experiment, cli, tmp_path):
    """On a few random images or invented tweets, since real data need files; models keep their size."""
    config = composed(f"experiment={experiment}")
    name = config["data"]["name"]
    num_clients = min(config["federation"]["num_clients"], 10)
    overrides = [
        f"experiment={experiment}", "scale=mini",
        *(tiny_tweets(tmp_path / "tweets") if name == "sent140" else random_images(name)),
        f"federation.num_clients={num_clients}", f"federation.cohort_size={min(num_clients, 2)}",
        "federation.fraction=null", "federation.num_rounds=1", "federation.local_epochs=null",
        "federation.local_steps=1", "federation.batch_size=4", "trainer=cpu", "trainer.num_threads=1", "logger=none",
        # So few images are not enough for everyone to have a benchmark's least number of them.
        *(["partition.inner.min_size=10"] if "min_size" in config["partition"].get("inner", {}) else []),
    ]  # fmt: skip
    outcome = cli(*overrides)
    assert outcome.code == 0, outcome.stderr
    assert (tmp_path / "run" / "summary.json").exists()


def labels_of(cfg, tweets):
    """Labels, columns and number of classes of what a mini form reads, all classes alike as `limited` leaves them."""
    loader = cfg.data.loader
    if cfg.data.name in ("digits", "sent140"):
        tiny_tweets(tweets, num_users=400, each=50)  # of which the preset reads 3 in 10, and takes 100 users
        dataset = instantiate(loader, **({"root": tweets} if cfg.data.name == "sent140" else {}))
        both = dataset.train, dataset.test
        return [part.labels.numpy() for part in both], [part.columns for part in both], dataset.num_classes
    num_classes = SHAPES[cfg.data.name][1]
    return [np.arange(size) % num_classes for size in (loader.num_train, loader.num_test)], [], num_classes


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_mini_form_of_every_experiment_has_examples_for_all_its_clients(experiment, tmp_path):
    """Not for ten of them, as above: under the experiment's own partition and its own number of clients."""
    cfg = OmegaConf.create(composed(f"experiment={experiment}", "scale=mini"))
    labels, columns, num_classes = labels_of(cfg, tmp_path)
    num_clients = cfg.federation.num_clients
    split = instantiate(cfg.partition).split(*labels, num_classes, num_clients, 0, *columns)
    assert split.train.num_clients == len(split.test.sizes()) == num_clients
    assert np.diff(split.train.offsets).min() >= 1
    # With 500 clients of 5 classes, 1000 test examples are 2 each, and few clients have none.
    assert (split.test.sizes() > 0).mean() > 0.9
