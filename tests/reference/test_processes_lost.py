"""Tasks in several processes, some of which die: nothing is lost, and what fails is told as in one process."""

import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from harness import make_data, parties

from fedfeat import tree
from fedfeat.algorithms.fedhenn import FedHeNNClient
from fedfeat.client import ClientModule
from fedfeat.clients.tasks import Task
from fedfeat.errors import ClientError, UserError
from fedfeat.executors.forked import child as child_module
from fedfeat.executors.forked.processes import ProcessExecutor
from fedfeat.executors.forked.shared import NoRoom
from fedfeat.executors.serial import SerialExecutor
from fedfeat.models.mlp import mlp
from fedfeat.params import snapshot
from fedfeat.types import Survey, Weights

SIZES = (3, 5, 8, 4, 6, 9, 2)


@pytest.fixture
def federation(tmp_path):
    """Build a federation in several processes, ended with the test."""
    made = []

    def build(name="processes", processes=3, **arguments):
        executor = partial(ProcessExecutor, num_processes=processes) if processes else SerialExecutor
        found = parties(
            tmp_path / name, data=make_data(SIZES), batch_size=2, build_executor=executor, **arguments
        )
        found.executor.start()
        made.append(found.executor)
        return found

    yield build
    for executor in made:
        executor.close()


def two_layers():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return mlp((4,), 3, hidden=[5])


def _is_first(mark):
    """Whether no process has left this mark before."""
    try:
        mark.open("x").close()
    except FileExistsError:
        return False
    return True


class _Dying(ClientModule):
    """Client 4 ends its process the first time, unless that is the one in which the test runs."""

    home = os.getpid()
    mark = None

    def on_train_start(self):
        torch.nn.init.constant_(
            self.model.head.fc1.linear.bias, 0.25
        )  # a fit under way has changed something
        if os.getpid() != self.home and self.mark is not None and _is_first(self.mark):
            os.kill(os.getpid(), signal.SIGKILL)


def test_tasks_of_a_process_that_is_killed_run_again(federation, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_Dying, "home", os.getpid())
    expected = federation("serial", processes=0, client=_Dying).run()[0][-1]
    monkeypatch.setattr(_Dying, "mark", tmp_path / "killed")
    killed = federation(client=_Dying)
    found = killed.run()[0][-1]
    assert (tmp_path / "killed").exists()
    assert "has died" in caplog.text
    assert len(killed.executor._children) == 1
    assert tree.sha256(found.state) == tree.sha256(expected.state)
    assert found.counters["comm/down_bytes"] == expected.counters["comm/down_bytes"]


def test_a_client_that_kills_three_processes_has_failed(federation, caplog):
    class Deadly(ClientModule):
        home = os.getpid()

        def on_train_start(self):
            if len(self.trainer.train_dataloader) == 5:  # client 5, the one of 9 examples
                assert os.getpid() != self.home
                os.kill(os.getpid(), signal.SIGKILL)

    started = federation(client=Deadly, processes=6)
    found = _fits(started.executor, [3, 5, 2])
    assert [getattr(update, "client_id", None) for update in found] == [3, None, 2]
    assert isinstance(found[1], ClientError)
    assert re.fullmatch(
        r"Client 5 failed in round 1 \(seed \d+\): its process died 3 times, at last by SIGKILL\.",
        str(found[1]),
    )
    assert "has died (SIGKILL); 1 of its tasks run again" in caplog.text
    assert len(started.executor._children) == 2


def test_examples_that_kill_three_processes_are_named(federation, monkeypatch):
    executor = federation(processes=5).executor
    executor.close()
    home, worker = os.getpid(), executor.worker
    worker.settings, score = replace(worker.settings, eval_batch_size=1), worker.score

    def deadly(payload, chosen, client_id):
        if chosen[-1] == worker.data.num_test - 1:
            assert os.getpid() != home
            os.kill(os.getpid(), signal.SIGKILL)
        return score(payload, chosen, client_id)

    monkeypatch.setattr(worker, "score", deadly)
    executor.start()
    with pytest.raises(
        UserError, match=r"could not be scored: its process died 3 times, at last by SIGKILL\.$"
    ):
        executor.score(Weights(snapshot(worker.module.model)))


@pytest.mark.parametrize("deadly", [False, True])
def test_clients_are_asked_in_all_processes(federation, tmp_path, deadly):
    class Asked(FedHeNNClient):
        mark, home = tmp_path / "killed", os.getpid()
        # What an answer cost tells which process gave it.
        forward_flops_per_example = property(lambda self: float(os.getpid()))

        def represent(self, inputs):
            if deadly and os.getpid() != self.home and _is_first(self.mark):
                os.kill(os.getpid(), signal.SIGKILL)
            return super().represent(inputs)

    executor = federation(client=Asked, build_model=two_layers).executor
    processes = {os.getpid(), *(child.pid for child in executor._children)}
    inputs = executor.worker.data.unlabelled(Survey("train_pool", 6), 0, 0)
    tasks = [Task(k, 0, None, None) for k in range(len(SIZES))]
    answers = list(executor.map("answer", tasks, inputs))
    places = {answer.flops / len(inputs) for answer in answers}
    assert places <= processes
    assert len(places) > 1
    assert len(executor._children) == (1 if deadly else 2)
    for task, answer in zip(tasks, answers, strict=True):
        here = executor.worker.answer(task, inputs)
        assert answer.client_id == task.client_id
        assert torch.equal(answer.payload.values, here.payload.values)


def test_without_any_other_process_left_this_one_does_everything(federation, caplog):
    expected = federation("serial", processes=0).run()[0][-1]
    alone = federation()
    for child in alone.executor._children:
        os.kill(child.pid, signal.SIGKILL)
    assert tree.sha256(alone.run()[0][-1].state) == tree.sha256(expected.state)
    assert alone.executor._children == []


def test_where_too_many_messages_wait_tasks_are_sent_later(federation, monkeypatch):
    """The kernel bounds how many descriptors of a user are on their way, here to none half of the time."""
    expected = federation("serial", processes=0).run()[0][-1]
    calls, send = [], child_module.send

    def seldom(*message):
        calls.append(os.getpid())
        if len(calls) % 2:
            raise NoRoom
        send(*message)

    monkeypatch.setattr(child_module, "send", seldom)
    found = federation()
    assert tree.sha256(found.run()[0][-1].state) == tree.sha256(expected.state)
    assert len(calls) > 10
    assert len(found.executor._children) == 2


def test_processes_that_cannot_be_heard_are_no_fault_of_their_client(federation, monkeypatch, caplog):
    """Who may open no more files receives nothing, of whichever client."""
    executor = federation(processes=6).executor

    def too_many(channel):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(child_module, "receive", too_many)
    assert [update.client_id for update in _fits(executor, [3, 5])] == [3, 5]
    assert "cannot be heard; 1 of its tasks run again in the 5 left" in caplog.text


def _answer(mark, parent, *_):
    """Note, as a handler, whether it is the parent that answers."""
    with mark.open("a") as file:
        file.write(f"{os.getpid() == parent} ")


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2])
def test_what_announces_the_end_of_a_job_is_answered_by_the_parent_alone(federation, tmp_path, signum):
    """SLURM signals all processes of a job: a child must neither die of it nor requeue the job."""
    here, mark = os.getpid(), tmp_path / "answered"
    before = signal.signal(signum, partial(_answer, mark, here))
    try:
        told = federation()
        for pid in (here, *(child.pid for child in told.executor._children)):
            os.kill(pid, signum)
        found = told.run()[0][-1]
    finally:
        signal.signal(signum, before)
    assert mark.read_text() == "True "
    assert len(told.executor._children) == 2
    assert tree.sha256(found.state) == tree.sha256(federation("serial", processes=0).run()[0][-1].state)


@pytest.mark.slow
def test_who_forgets_to_close_the_executor_still_comes_to_an_end():
    script = (
        "import os, sys\n"
        "from functools import partial\n"
        "from harness import parties\n"
        "from fedfeat.executors.forked.processes import ProcessExecutor\n"
        "executor = partial(ProcessExecutor, num_processes=3)\n"
        "executor = parties(sys.argv[1], build_executor=executor).executor\n"
        "executor.start()\n"
        "print(*(child.pid for child in executor._children))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    command = [sys.executable, "-c", script, "nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_signal_in_the_moment_of_the_fork_is_the_parents(federation, monkeypatch, tmp_path):
    mark, before = tmp_path / "answered", signal.getsignal(signal.SIGUSR2)
    here, fork = os.getpid(), os.fork

    def forked():
        os.kill(here, signal.SIGUSR2)
        pid = fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGUSR2)
        return pid

    signal.signal(signal.SIGUSR2, partial(_answer, mark, here))
    monkeypatch.setattr(os, "fork", forked)
    try:
        told = federation(processes=2)
        told.run()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert mark.read_text() == "True "
    assert len(told.executor._children) == 1


class _Failing(ClientModule):
    """Client 5, the one of 9 examples, cannot be fitted."""

    def on_train_start(self):
        if len(self.trainer.train_dataloader) == 5:
            raise RuntimeError("no luck\nand more of it")


def test_a_client_that_fails_stops_the_run_with_the_sentence_of_one_process(federation):
    sentences = []
    for processes in (0, 3):
        with pytest.raises(ClientError) as caught:
            federation(str(processes), processes, client=_Failing).run()
        sentences.append(str(caught.value))
    assert sentences[0] == sentences[1]
    assert "Client 5 failed in round 1" in sentences[0]
    assert "RuntimeError: no luck in " in sentences[0]


def test_a_client_that_fails_elsewhere_keeps_its_stack_trace(federation):
    executor = federation(client=_Failing, processes=2).executor
    # This process takes the first of equal turns itself and gives the two others away.
    own, *others = _fits(executor, [5, 5, 5])
    assert isinstance(own, ClientError)
    assert not hasattr(own, "__notes__")  # its stack trace is its own and its cause's
    assert len(others) == 2
    for error in others:
        assert isinstance(error, ClientError)
        assert str(error) == str(own)
        (note,) = error.__notes__
        assert "in on_train_start" in note
        assert "RuntimeError: no luck" in note


def _fits(executor, clients):
    payload = Weights(snapshot(executor.worker.module.model))
    return list(executor.map("fit", [Task(k, 0, payload, None, 2) for k in clients]))


def test_failed_clients_can_be_skipped(federation):
    states = [federation(str(n), n, client=_Failing, skip_failed=True).run()[0][-1].state for n in (0, 3)]
    assert tree.sha256(states[0]) == tree.sha256(states[1])


def test_a_job_that_was_given_up_leaves_nothing_in_the_next(federation):
    federated = federation(client=_Failing, cohort_size=7)
    with pytest.raises(ClientError):
        federated.run()
    # What the children were still doing belongs to no later job.
    assert [update.client_id for update in _fits(federated.executor, [0, 1, 2, 3])] == [0, 1, 2, 3]


def test_two_jobs_at_once_do_not_mix(federation):
    executor = federation().executor
    payload = Weights(snapshot(executor.worker.module.model))
    one, other = (
        executor.map("fit", [Task(k, 0, payload, None, 1) for k in ks]) for ks in (range(6), range(6, -1, -1))
    )
    found = [
        next(one).client_id,
        *(update.client_id for update in other),
        *(update.client_id for update in one),
    ]
    assert found == [0, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5]


def test_closing_ends_the_processes(federation):
    executor = federation().executor
    pids = [child.pid for child in executor._children]
    assert len(pids) == 2
    executor.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_children_die_with_their_parent(federation):
    """Of a parent that is killed nothing stays behind that holds its files."""
    reading, writing = os.pipe()
    parent = os.fork()
    if not parent:
        executor = federation("forked", processes=2).executor
        os.write(writing, str(executor._children[0].pid).encode())
        time.sleep(60)
        os._exit(0)
    child = int(os.read(reading, 20))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_processes_outlive_the_thread_that_started_them():
    """Of a notebook or a web service, say; the kernel would end them with it."""
    started = []
    thread = threading.Thread(target=lambda: started.append(child_module.Child(None, [])))
    thread.start()
    thread.join()
    try:
        started[0]._process.join(0.5)
        assert started[0]._process.is_alive()
    finally:
        started[0].end()
