"""Every command of the package on every page runs: one short round, on random images where its data are not here."""

import importlib
import sys
from itertools import product
from pathlib import Path

import pytest
from page_commands import PROJECT, command_of, commands, first_of
from PIL import Image
from tweets import tiny_tweets

import fedfeat
from fedfeat.data.packed import write_packed
from fedfeat.data.synthetic import synthetic

# wandb-workspaces is written for an older pydantic.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Pydantic V1 style:DeprecationWarning")]

SHAPES = (("cifar10", (3, 32, 32), 10), ("cifar100", (3, 32, 32), 100), ("mnist", (1, 28, 28), 10))
# One round of one step with two clients.
CUT = ("federation.num_rounds=1", "federation.local_epochs=null", "federation.local_steps=1",
       "federation.fraction=null", "federation.cohort_size=2", "trainer.num_threads=1")  # fmt: skip
EVERYONE = "federation.cohort_size=null"
MORE = {"algorithm=fedma": (EVERYONE, "federation.num_rounds=4"), "algorithm=pfnm": (EVERYONE,)}
# What a machine has to have that a test's has not; with a cluster these words run in test_ray.py and test_slurm.py.
MACHINE = (
    "trainer=gpu",
    "executor.gpus_per_worker=",
    "executor.address=auto",
    "hydra/launcher=",
    "hydra.launcher.",
)
ASKED = {"--dry-run": "fedfeat-wandb", "--once": "fedfeat-watch"}  # nothing is sent, and nothing waits
DAY = {  # the runs that the pages' commands look at, below logs/sweeps
    "first": {
        f"{name}-{seed}": f"algorithm={name} seed={seed}" for name in ("fedavg", "fedprox") for seed in (0, 1)
    },
    "groups": {str(number): f"algorithm=fed2 structure.groups={number}" for number in (2, 5)},
    "depth": {
        str(depth): f"algorithm=fed2 structure.depth={depth} diagnostics=alignment" for depth in (2, 3)
    },
    "half": {
        str(share): f"algorithm=fedhenn scenario=reduced scenario.reduced_fraction={share}"
        for share in (0.2, 0.5)
    },
    "lr": {str(lr): f"algorithm=fedavg optimizer.lr={lr}" for lr in (0.05, 0.1)},
    "fed2/t1_vgg9": {name: f"experiment=fed2/t1_vgg9 algorithm={name}" for name in ("fedavg", "fed2")},
    "../tune/digits-fedprox": {"trials/0000": "algorithm=fedprox"},
    "demo": {name: f"experiment=digits_10x3 algorithm={name}" for name in ("fedavg", "fed2")},
}


COMMANDS = [command_of(words) for words in commands()]
OTHERS = sorted({(program, *words) for program, words in COMMANDS if program.startswith("fedfeat-")})


def runs():
    """The words of all runs, without those of a machine; each once."""
    found = [first_of(words) for program, words in COMMANDS if program == "fedfeat" and words != ["--help"]]
    return sorted({tuple(word for word in words if not word.startswith(MACHINE)) for words in found})


@pytest.fixture(scope="session")
def examples(tmp_path_factory) -> Path:
    """A folder with random images in the place of data sets, an image folder of its own, and tweets."""
    root = tmp_path_factory.mktemp("data")
    for name, shape, num_classes in SHAPES:
        write_packed(root / f"{name}.safetensors", synthetic(shape, num_classes, 3000, 200))
    owners = ["file,hospital"]
    for split, label, number in product(("train", "test"), "abcdefghij", range(20)):
        owners.append(f"{split}/{label}/{number}.png,{('North', 'South', 'East', 'West')[number % 4]}")
        path = root / "images" / split / label / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, ord(label), 99)).save(path)
    (root / "images" / "hospitals.csv").write_text("\n".join(owners))
    tiny_tweets(root, num_users=400, each=60)
    return root


@pytest.fixture
def day_of(monkeypatch, examples):
    """Work in a folder, with the examples; no word goes to a server."""

    def call(folder):
        monkeypatch.chdir(folder)
        monkeypatch.setenv("FEDFEAT_ROOT", str(folder))
        monkeypatch.setenv("FEDFEAT_DATA", str(examples))
        monkeypatch.setenv("WANDB_MODE", "offline")
        return folder

    return call


@pytest.mark.parametrize("words", runs(), ids=" ".join)
def test_every_run_of_the_pages_runs(words, cli, day_of, examples, tmp_path):
    day_of(tmp_path)
    places = {
        "data.root=/path/to/images": f"data.root={examples}/images",
        "data.root=/path/to/data": f"data.root={examples}",
        "data.loader.columns=/path/to/images/hospitals.csv": f"data.loader.columns={examples}/images/hospitals.csv",
    }
    words = [places.get(word, word) for word in words]
    more = [word for key, found in MORE.items() if key in words for word in found]
    outcome = cli(*words, *CUT, *more)
    assert outcome.code == 0, outcome.stderr
    assert [*tmp_path.rglob("summary.json")]


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory):
    """Where the runs of `DAY` are made once."""
    return tmp_path_factory.mktemp("day")


@pytest.fixture
def day(looked_at, day_of):
    """A folder with the runs that the pages' commands look at."""
    sweeps = day_of(looked_at) / "logs/sweeps"
    if not sweeps.exists():
        (looked_at / "conf/experiment").mkdir(parents=True)
        for sweep, found in DAY.items():
            for name, words in found.items():
                place = f"hydra.run.dir={sweeps / sweep / name}"
                fedfeat.run([*words.split(), *CUT, "trainer=cpu", "logger=quiet", place])
    return looked_at


@pytest.mark.parametrize("command", OTHERS, ids=" ".join)
def test_every_other_command_of_the_pages_runs(command, day, day_of, tmp_path, monkeypatch, capsys):
    program, *words = command
    words = ["logs/sweeps/first/fedavg-0" if word == "DIR" else word for word in words]
    words += [option for option, of in ASKED.items() if of == program and option not in words]
    if program == "fedfeat-tune":
        day_of(tmp_path)  # some of the searches have one name
        words = [word for word in words if word not in ("--launcher", "submitit_slurm")]
        words += [*CUT, "--trials", "1"]
    module, _, name = PROJECT["scripts"][program].partition(":")
    monkeypatch.setattr(sys, "argv", [program, *words])
    code = 0
    try:
        getattr(importlib.import_module(module), name)()
    except SystemExit as end:
        code = end.code or 0
    assert code == 0, capsys.readouterr().err
