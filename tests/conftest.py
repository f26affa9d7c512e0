"""Fixtures that several folders of tests share."""

import gc
import logging
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from hydra.core.global_hydra import GlobalHydra
from hypothesis import settings

SMALL = (
    "data=synthetic",
    "data.loader.shape=[1,4,4]",
    "data.loader.num_classes=3",
    "data.loader.num_train=60",
    "data.loader.num_test=24",
    "partition=iid",
    "model=mlp",
    "algorithm=fedavg",
    "model.hidden=[8]",
    "federation.num_clients=4",
    "federation.num_rounds=3",
    "federation.batch_size=8",
    "federation.local_epochs=1",
    "trainer=cpu",
)

# How long an example takes says nothing on a machine that runs other tests beside it.
settings.register_profile("fedfeat", deadline=None)
settings.load_profile("fedfeat")


_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    """A machine several times slower than others still comes to an end, and says what it has not come to."""
    parser.addoption(
        "--slow-until",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="begin no slow test later than this after the start; it is skipped, and named",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--slow-until")
    if item.get_closest_marker("slow") and time.monotonic() - _BEGAN > seconds:
        pytest.skip(f"{item.path.name}: slow, and not come to within {seconds:g} s (--slow-until)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what is slow, so that no worker is left alone with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_collection_finish() -> None:
    """Leave ten thousand tests and all that they import out of every garbage collection from now on."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Let what is left be collected, for some libraries complain of what still lives when a process ends."""
    gc.unfreeze()


class Outcome(NamedTuple):
    """What a command line gave: exit code and what it printed on stderr."""

    code: int
    stderr: str


@pytest.fixture
def cli(tmp_path: Path, capsys, monkeypatch) -> Callable[..., Outcome]:
    """Run ``fedfeat`` in this process (importing torch anew for every case would take minutes).

    The run directory is ``tmp_path / "run"`` unless an override says otherwise.
    """
    monkeypatch.setenv("FEDFEAT_ROOT", str(tmp_path))
    monkeypatch.delenv("FEDFEAT_DATA", raising=False)

    def call(*overrides: str) -> Outcome:
        from fedfeat.train import main

        GlobalHydra.instance().clear()
        argv = ["fedfeat", *overrides]
        if not any(word.startswith("hydra.run.dir=") or word == "--multirun" for word in overrides):
            argv.append(f"hydra.run.dir={tmp_path / 'run'}")
        monkeypatch.setattr(sys, "argv", argv)
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, capsys.readouterr().err)

    yield call
    logging.getLogger("fedfeat").handlers.clear()


@pytest.fixture
def small() -> list[str]:
    """Overrides of a run that takes a fraction of a second."""
    return list(SMALL)
