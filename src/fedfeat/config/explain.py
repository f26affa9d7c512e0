"""One sentence for any error."""

import re
from pathlib import Path
from typing import TypeGuard

from fedfeat.config.library_errors import of_library, one_line, without_asides
from fedfeat.config.origin import own_place
from fedfeat.errors import UserError

# What submitit says of a job without a result, before the job's log; and of one that could not even begin.
_NO_RESULT = re.compile(r"Job (\S+) \(task: \d+\) with path (.+)_result\.pkl\nhas not .*\(state: (.*)\)")
_FAILED = re.compile(r"Job \(task=\d+\) failed .*?\n-+\n(.*)\n-+\n.*at paths:\n  - (.+?)\n", re.DOTALL)


def explain(error: BaseException, run_dir: Path | None = None) -> str:
    """Give one line for the error that ended a run, naming key, rule and value wherever they are known.

    Args:
        error: The error.
        run_dir: Where the run is, which the system does not say of what it cannot write.
    """
    known = as_user_error(error)
    if known is not None:
        return one_line(str(known))
    if of_system(error):
        place = error.filename or run_dir or "The run directory"
        return f"{place} must be usable for this run, but the system says: {error.strerror}."
    if type(error).__module__.partition(".")[0] == "submitit" and (lost := _of_job(str(error))):
        return lost
    return f"{told(error, '; debug=true shows where')}."


def of_system(error: BaseException) -> TypeGuard[OSError]:
    """Whether it is the system that refuses, and says why."""
    return isinstance(error, OSError) and bool(error.strerror)


def told(error: BaseException, more: str = "") -> str:
    """Give what an error says, its type, the innermost line that is of no installed package and not ours, its notes.

    Args:
        error: The error.
        more: What is said beside the type.
    """
    text = without_asides(str(error)) or "no message"
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    return f"{text.rstrip('.')} ({type(error).__name__}{own_place(error)}{notes}{more})"


def as_user_error(error: BaseException) -> UserError | None:
    """Give the refusal behind an error, or None where the input is not known to be its cause.

    Hydra wraps what a constructor raises, so the causes are gone through as well.
    """
    inner: BaseException | None = error
    while inner is not None:
        found = inner if isinstance(inner, UserError) else of_library(inner)
        if found is not None:
            return found
        inner = inner.__cause__ or inner.__context__
    return None


def _of_job(text: str) -> str | None:
    """Say what became of a job on a cluster, and where its log is, which submitit gives whole."""
    if match := _NO_RESULT.match(text):
        job, path, state = match.groups()
        logs = (Path(f"{path}_log.{kind}") for kind in ("err", "out"))
        log = next((log for log in logs if log.is_file() and log.stat().st_size), None)
        where = f"its log is {log}" if log else f"it has left no log in {Path(path).parent}"
        return f"Job {job} must end with a result, but it has ended without one (state: {state}); {where}."
    if match := _FAILED.match(text):
        reason = match[1].rstrip().rpartition("\n")[2].rstrip(".")
        return f"A job must run, but it has failed ({reason}); its log is {match[2]}."
    return None
