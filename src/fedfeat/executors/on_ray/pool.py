"""Workers on the nodes of a Ray cluster, of which any that is lost is replaced."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError

from fedfeat.errors import UserError

_log = logging.getLogger("fedfeat")

# Workers that may die in a row before they have started.
_FAILED_STARTS = 3
_SECONDS_OF_SILENCE = 60.0
_SECONDS_BETWEEN_LOOKS = 2.0


class Lost(NamedTuple):
    """Stands for the result of a call whose worker has died, for a reason that Ray gives in one line."""

    reason: str


class Pool:
    """Actors that do one call at a time each.

    Args:
        kind: Their class, a remote one.
        arguments: Of the first call of each, ``open``, after which it is ready.
        size: How many.
        check: Raises an error where there is no cluster any more.
    """

    def __init__(self, kind: Any, arguments: Sequence[Any], size: int, check: Callable[[], None]) -> None:
        self._kind, self._arguments, self.size, self._check = kind, arguments, size, check
        self._idle: list[Any] = []
        self._busy: dict[Any, Any] = {}
        self._starting: set[Any] = set()
        self._failed_starts = 0
        for _ in range(size):
            self._add()

    @property
    def has_idle(self) -> bool:
        """Whether a call can be made now."""
        return bool(self._idle)

    def call(self, *arguments: Any) -> Any:
        """Have an idle actor run a task; give the reference under which `wait` gives its result."""
        self._check()
        actor = self._idle.pop()
        reference = actor.run.remote(*arguments)
        self._busy[reference] = actor
        return reference

    def wait(self) -> tuple[Any, Any]:
        """Wait for a call to end, also the first one of an actor; give its reference and its result.

        The result is an exception that the call has raised, or `Lost`. Then another actor has taken the place of
        the one that was lost.

        Raises:
            UserError: Actors die before they are ready, time and again, or the cluster has died.
            Exception: That of a first call: no worker can be built.
        """
        reference = self._first_done()
        actor, found = self._busy.pop(reference), _result(reference)
        started = reference in self._starting
        self._starting.discard(reference)
        if isinstance(found, Lost):
            self._check()
            self._replace(actor, found, started)
            return reference, found
        self._idle.append(actor)
        if started:
            if isinstance(found, Exception):
                raise found
            self._failed_starts = 0
        return reference, found

    def close(self) -> None:
        """End all actors."""
        for actor in (*self._idle, *self._busy.values()):
            ray.kill(actor)
        self._idle, self._busy, self._starting = [], {}, set()

    def _first_done(self) -> Any:
        silent = 0.0
        while True:
            # Calls may go on to be answered for a while, until Ray ends this process without a word.
            self._check()
            done, _ = ray.wait(list(self._busy), num_returns=1, timeout=_SECONDS_BETWEEN_LOOKS)
            if done:
                return done[0]
            silent += _SECONDS_BETWEEN_LOOKS
            if self._starting and not silent % _SECONDS_OF_SILENCE:
                waiting = len(self._starting)
                _log.info("%d of %d workers wait for room in the Ray cluster.", waiting, self.size)

    def _add(self) -> None:
        actor = self._new_actor()
        first_call = actor.open.remote(*self._arguments)
        self._busy[first_call] = actor
        self._starting.add(first_call)

    def _new_actor(self) -> Any:
        return self._kind.remote()

    def _replace(self, actor: Any, lost: Lost, started: bool) -> None:
        # Of one that is only out of reach, nothing more is to be heard.
        ray.kill(actor)
        if started:
            self._failed_starts += 1
            if self._failed_starts == _FAILED_STARTS:
                raise UserError(
                    f"A worker of executor=ray must be able to start, but {_FAILED_STARTS} in a row have died "
                    f"before: {lost.reason}"
                )
        self._add()


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Exception) else error
    except RayError as error:
        return Lost(next(iter(str(error).splitlines()), type(error).__name__))
