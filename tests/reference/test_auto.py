"""`executor=auto`: the bits of `serial` wherever turns run one by one, in one process or several."""

import time
from functools import partial
from multiprocessing.process import current_process

import pytest
from executor_cases import CASES, run, serial
from harness import parties

from fedfeat.clients.tasks import Turns
from fedfeat.clients.worker import Worker
from fedfeat.errors import ConfigError
from fedfeat.executors import auto
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.serial import SerialExecutor
from fedfeat.rounds.experiment import Experiment

FOUR = "federation.num_rounds=4"


@pytest.fixture
def forking(monkeypatch):
    """On a machine with two cores no run is too short for processes."""
    monkeypatch.setattr(auto, "_WORTH_FORKING", 0.0)
    monkeypatch.setattr(auto, "num_cores", lambda: 2)


@pytest.fixture
def watched(monkeypatch):
    """What has closed its processes, and how many turns this process ran by itself."""
    seen = {"closed": 0, "alone": 0, "forked": 0}
    start, close, here = ProcessExecutor.start, ProcessExecutor.close, SerialExecutor.here

    def noted(name, original):
        def call(*arguments):
            seen[name] += 1
            return original(*arguments)

        return call

    monkeypatch.setattr(ProcessExecutor, "start", noted("forked", start))
    monkeypatch.setattr(ProcessExecutor, "close", noted("closed", close))
    monkeypatch.setattr(SerialExecutor, "here", noted("alone", here))
    return seen


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return run(tmp_path_factory.mktemp("serial"), CASES["fedavg"], "serial", FOUR)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedrep", "fedhenn_hetero", "fedmd", "heterofl"])
def test_in_processes_every_bit_is_that_of_serial(name, tmp_path, forking, watched):
    assert run(tmp_path, CASES[name], "auto") == serial(name)
    assert watched["forked"] == 1


@pytest.mark.parametrize(("worthwhile", "ended"), [(0.0, 1), (1e9, 0)])
def test_whatever_the_clock_says_no_bit_changes_and_no_turn_is_run_twice(
    worthwhile, ended, tmp_path, forking, watched, reference, monkeypatch, caplog
):
    """Bytes are counted for every task that is made, so equal metrics say that none was made twice."""
    monkeypatch.setattr(auto, "_WORTHWHILE", worthwhile)
    monkeypatch.setattr(auto, "_LONG_TURN", 1e9)
    caplog.set_level("INFO", logger="fedfeat")
    assert run(tmp_path, CASES["fedavg"], "auto", FOUR) == reference
    # A cohort of three: one turn of the third round alone, and all of the fourth where the processes are ended.
    assert watched["alone"] == (4 if ended else 1)
    assert watched["closed"] == 1  # by the trial, or at the end of the run
    name = "serial" if ended else "processes"
    assert [text for text in caplog.messages if text.startswith(f"executor: {name} (") and "in one)" in text]


def test_what_is_built_and_not_run_has_no_processes(tmp_path, forking, watched, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda self, stack: {"weights_sha256": "", "final": {}})
    run(tmp_path, CASES["fedavg"], "auto")
    assert watched["forked"] == 0


def test_a_round_without_turns_is_not_timed(tmp_path, forking, watched):
    """All participants of it are stragglers that are dropped."""
    federation = parties(tmp_path, build_executor=partial(auto.AutoExecutor, among=["processes"]))
    federation.executor.settle(tmp_path, federation.plan.course(federation.data))
    federation.executor.start()
    federation.executor.open()
    try:
        assert isinstance(federation.executor.current, ProcessExecutor)
        assert list(federation.executor.map("fit", Turns([], lambda k: None))) == []
    finally:
        federation.executor.close()


def test_long_turns_are_not_compared(tmp_path, forking, watched, reference, monkeypatch):
    monkeypatch.setattr(auto, "_LONG_TURN", 0.0)
    monkeypatch.setattr(auto, "_WORTHWHILE", 0.0)
    assert run(tmp_path, CASES["fedavg"], "auto", FOUR) == reference
    assert watched["alone"] == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_cores": 1}, "one core"),
        ({"_WORTH_FORKING": 1e9}, "so short a run"),
        ({"daemon": True}, "this process may have no children"),
        ({"words": ["federation.cohort_size=1"]}, "one client has all threads"),
        ({"words": ["executor.among=[vectorized]"]}, "executor.among has no processes"),
        ({"refused": True}, "TMPDIR must be short."),
    ],
)
def test_no_process_is_forked_where_it_brings_nothing_or_cannot_be(
    change, why, tmp_path, forking, monkeypatch, caplog
):
    if "num_cores" in change:
        monkeypatch.setattr(auto, "num_cores", lambda: change["num_cores"])
    if "_WORTH_FORKING" in change:
        monkeypatch.setattr(auto, "_WORTH_FORKING", change["_WORTH_FORKING"])
    if "daemon" in change:
        monkeypatch.setitem(current_process()._config, "daemon", True)

    def start(self):
        assert "refused" in change
        raise ConfigError("TMPDIR must be short.")

    monkeypatch.setattr(ProcessExecutor, "start", start)
    caplog.set_level("INFO", logger="fedfeat")
    run(tmp_path, CASES["fedavg"], "auto", "federation.num_rounds=1", *change.get("words", []))
    assert f"executor: serial ({why})." in caplog.messages


def test_a_failing_client_is_told_as_by_serial(tmp_path, forking, monkeypatch):
    def fails(self, task):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Worker, "_fit", fails)
    sentences = []
    for executor in ("serial", "auto"):
        with pytest.raises(Exception, match="out of luck") as caught:
            run(tmp_path / executor, CASES["fedavg"], executor)
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]


def test_what_is_compared_takes_a_bounded_time(tmp_path, forking, watched, monkeypatch):
    """Of ten slow turns only so many run alone as half a second has."""
    fit = Worker._fit

    def slow(self, task):
        time.sleep(0.2)
        return fit(self, task)

    monkeypatch.setattr(Worker, "_fit", slow)
    monkeypatch.setattr(auto, "_SHARE", 1.0)
    monkeypatch.setattr(auto, "_LONG_TURN", 1e9)
    words = ["federation.num_clients=10", "federation.cohort_size=10", "federation.num_rounds=3"]
    run(tmp_path, CASES["fedavg"], "auto", *words, "federation.local_epochs=1", "data.loader.num_train=100")
    assert 1 <= watched["alone"] <= 3
