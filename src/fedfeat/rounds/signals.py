"""Signals that announce the end of a process, held back until the round they come in is done and saved.

SLURM sends one before a time limit or a preemption (``--signal``; submitit asks for USR2 and answers it by a requeue)
and SIGTERM when it is serious. A round cannot be continued in its middle, so ending one loses its work.
"""

import logging
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any, Self

from fedfeat.config.search_path import typed_run_dir

_log = logging.getLogger("fedfeat")
_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
# Half of the warning that the launchers and scripts of the project ask SLURM for (120 s): time is left for a requeue.
GRACE_S = 60.0


class Stopping:
    """While entered, SIGUSR1, SIGUSR2 and SIGTERM wait for `deliver`.

    They wait no longer than ``grace_s``, and not beyond a second signal: then they are delivered where the run stands,
    which goes on from its last checkpoint. A signal that is ignored stays ignored, and outside of the main thread,
    where Python allows no handlers, nothing changes.

    Args:
        grace_s: Seconds that a round may still take.
        active: False leaves all signals alone.
        run_dir: The run directory, named in the sentence that a signal is answered by.
    """

    def __init__(self, grace_s: float = GRACE_S, active: bool = True, run_dir: Path = Path()) -> None:
        self._grace_s, self._run_dir = grace_s, run_dir
        self._active = active and threading.current_thread() is threading.main_thread()
        self._before: dict[int, Any] = {}
        self._pending: list[int] = []

    @property
    def requested(self) -> bool:
        """Whether a signal waits."""
        return bool(self._pending)

    def deliver(self) -> None:
        """Give the waiting signals to whom they would have gone to.

        Returns if those let the process go on, as submitit does on SIGTERM, or where none waits.

        Raises:
            SystemExit: There was no handler; the exit code is that of a process that the signal ended.
        """
        pending, self._pending = self._pending, []
        if not pending:
            return
        before = dict(self._before)
        self._release()
        for signum in pending:
            name, handler = signal.Signals(signum).name, before[signum]
            sentence = "%s: the same command with %s goes on from the last checkpoint."
            _log.warning(sentence, name, typed_run_dir(self._run_dir))
            if not callable(handler):
                raise SystemExit(128 + signum)
            try:
                handler(signum, None)
            except Exception as error:  # of submitit, and not of the client whose fit it came in
                raise SystemExit(f"{name}: {error}") from error
        self._hold()

    def __enter__(self) -> Self:
        if self._active:
            self._hold()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.deliver()
        self._release()

    def _hold(self) -> None:
        for signum in _SIGNALS:
            if signal.getsignal(signum) not in (signal.SIG_IGN, None):
                self._before[signum] = signal.signal(signum, self._note)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, lambda *_: self.deliver())

    def _release(self) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, signum: int, frame: FrameType | None) -> None:
        second = self.requested
        self._pending.append(signum)
        if second:
            self.deliver()
        else:
            signal.setitimer(signal.ITIMER_REAL, self._grace_s)
