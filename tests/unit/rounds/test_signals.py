"""Signals wait for the end of a round, and no longer than they may."""

import os
import signal
import threading
import time

import pytest

from fedfeat.rounds.signals import Stopping

OURS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)


@pytest.fixture(autouse=True)
def handlers():
    """Every test starts with the system's own handlers and leaves those of pytest behind."""
    before = {signum: signal.signal(signum, signal.SIG_DFL) for signum in (*OURS, signal.SIGALRM)}
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for signum, handler in before.items():
        signal.signal(signum, handler)


def send(signum):
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize("signum", OURS)
def test_a_signal_waits_and_then_ends_the_process_with_its_own_code(signum):
    reached = []

    def work():
        with Stopping() as stopping:
            stopping.deliver()
            reached.append(stopping.requested)
            send(signum)
            reached.append(stopping.requested)
            stopping.deliver()
            reached.append("never")

    with pytest.raises(SystemExit) as stop:
        work()
    assert reached == [False, True]
    assert stop.value.code == 128 + signum


def test_the_sentence_names_the_directory_to_go_on_in(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit), Stopping(run_dir=tmp_path / "logs" / "one"):
        send(signal.SIGTERM)  # delivered at the end of the block
    sentence = "SIGTERM: the same command with hydra.run.dir=logs/one goes on from the last checkpoint."
    assert sentence in caplog.messages


def test_handlers_are_put_back():
    with Stopping():
        assert all(callable(signal.getsignal(signum)) for signum in OURS)
    assert [signal.getsignal(signum) for signum in (*OURS, signal.SIGALRM)] == [signal.SIG_DFL] * 4


def test_a_handler_that_was_there_is_asked_and_may_let_the_process_go_on():
    asked = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    with Stopping() as stopping:
        for times in (1, 2):
            send(signal.SIGTERM)
            assert len(asked) == times - 1
            stopping.deliver()
            assert asked == [signal.SIGTERM] * times
            assert not stopping.requested


def test_a_second_signal_delivers_both_at_once_in_their_order():
    asked = []
    for signum in (signal.SIGTERM, signal.SIGUSR2):
        signal.signal(signum, lambda signum, _: asked.append(signum))
    with Stopping():
        send(signal.SIGUSR2)
        assert asked == []
        send(signal.SIGTERM)
        assert asked == [signal.SIGUSR2, signal.SIGTERM]


def test_a_round_that_takes_too_long_is_cut():
    def work():
        with Stopping(grace_s=0.2):
            send(signal.SIGUSR1)
            time.sleep(20)

    began = time.monotonic()
    with pytest.raises(SystemExit) as stop:
        work()
    assert stop.value.code == 128 + signal.SIGUSR1
    assert 0.2 <= time.monotonic() - began < 10


def test_no_clock_runs_on_after_a_delivery():
    signal.signal(signal.SIGTERM, lambda *_: None)
    with Stopping(grace_s=0.1) as stopping:
        send(signal.SIGTERM)
        stopping.deliver()
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_what_waits_at_the_end_is_delivered_there_unless_an_error_is_on_its_way():
    def work(divisor):
        with Stopping():
            send(signal.SIGTERM)
            return 1 / divisor

    with pytest.raises(SystemExit):
        work(1)
    with pytest.raises(ZeroDivisionError):
        work(0)


def test_an_error_of_a_handler_is_none_of_the_client_that_was_fitting():
    def refuse(*_):
        raise ValueError("timed-out too many times")

    signal.signal(signal.SIGUSR2, refuse)
    with pytest.raises(SystemExit, match="SIGUSR2: timed-out too many times"), Stopping():
        send(signal.SIGUSR2)


def test_ignored_signals_stay_ignored_and_inactive_changes_nothing():
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with Stopping() as stopping:
        send(signal.SIGUSR1)
        assert not stopping.requested
    with Stopping(active=False):
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_another_thread_leaves_handlers_alone():
    found = []

    def work():
        with Stopping() as stopping:
            found.append((signal.getsignal(signal.SIGTERM), stopping.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(signal.SIG_DFL, False)]
