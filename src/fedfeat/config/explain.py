"""One sentence for any error; what Hydra and OmegaConf say is put into the words of our own refusals."""

import re
from collections.abc import Mapping
from pathlib import Path

from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException, ValidationError

from fedfeat.config.hints import unknown_key
from fedfeat.config.search_path import CONFIGS, options_in
from fedfeat.errors import ConfigError, UserError, own_place

# Lines that Hydra and OmegaConf add for programmers.
_ASIDES = (
    *("full_key", "object_type", "reference_type"),
    *("Set the environment", "To append", "See https://hydra.cc"),
)
# What submitit says of a job without a result, before the job's log; and of one that could not even begin.
_NO_RESULT = re.compile(r"Job (\S+) \(task: \d+\) with path (.+)_result\.pkl\nhas not .*\(state: (.*)\)")
_FAILED = re.compile(r"Job \(task=\d+\) failed .*?\n-+\n(.*)\n-+\n.*at paths:\n  - (.+?)\n", re.DOTALL)
# Of ours, an error that is no refusal is a mistake in the program.
_MADE = re.compile(r"Error in call to target '(?!fedfeat\.)([^']+)'(?:.*full_key: (\S+))?", re.DOTALL)
# A part that is built around another has none where it takes the other's place itself.
_LACKS = re.compile(
    r"'fedfeat\.\S+\.(\w+)'.*missing \d+ required .*?arguments?: '(\w+)'.*full_key: (\S+)", re.DOTALL
)
_DELETED = re.compile(r"Could not delete from config\. '(\S+)' does not exist")
_SEVERAL = re.compile(r"Ambiguous value for argument '([^'=]+)=(.*?)'\n")
_TWICE = re.compile(r"Multiple values for ([^\s.]+)|(\S+) appears more than once")


def explain(error: BaseException) -> str:
    """Give one line for the error that ended a run, naming key, rule and value wherever they are known."""
    known = as_user_error(error)
    if known is not None:
        return _one_line(str(known))
    if isinstance(error, OSError) and error.strerror:
        place = error.filename or "The run directory"
        return f"{place} must be usable for this run, but the system says: {error.strerror}."
    if type(error).__module__.partition(".")[0] == "submitit" and (lost := _of_job(str(error))):
        return lost
    return f"{told(error, '; debug=true shows where')}."


def told(error: BaseException, more: str = "") -> str:
    """Give what an error says, its type, and the innermost line that is of no installed package and not ours.

    Args:
        error: The error.
        more: What is said beside the type.
    """
    text = _without_asides(str(error)) or "no message"
    return f"{text.rstrip('.')} ({type(error).__name__}{own_place(error)}{more})"


def as_user_error(error: BaseException) -> UserError | None:
    """Give the refusal behind an error, or None where the input is not known to be its cause.

    Hydra wraps what a constructor raises, so the causes are gone through as well.
    """
    inner: BaseException | None = error
    while inner is not None:
        found = inner if isinstance(inner, UserError) else _of_library(inner)
        if found is not None:
            return found
        inner = inner.__cause__ or inner.__context__
    return None


def _of_library(error: BaseException) -> ConfigError | None:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        # Without a group it is the primary configuration, for whose name Hydra gives no options.
        known = error.options or (() if group else options_in([CONFIGS], ""))
        rule = f"be one of {', '.join(known)}" if known else f"name a file of configs/{group}"
        return ConfigError.rule(group or "--config-name", rule, option, known)
    if isinstance(error, OverrideParseException):
        reason = _without_asides(error.message).removeprefix(f"Error parsing override '{error.override}' ")
        return ConfigError(
            f"{error.override} must be key=value as Hydra's grammar has it, but it is not: {reason}."
        )
    if isinstance(error, ConfigCompositionException) and (twice := _TWICE.match(str(error))):
        group = twice[1] or twice[2]
        return ConfigError(
            f"{group} must be chosen once, but it is twice; a group that has an option takes another as "
            f"{group}=<name>, and --multirun goes through several with commas between."
        )
    if isinstance(error, ConfigCompositionException) and (deleted := _DELETED.match(str(error))):
        return ConfigError(f"{deleted[1]} must have a value to be deleted, but it has none.")
    if isinstance(error, ConfigCompositionException) and (several := _SEVERAL.match(str(error))):
        key, values = several.groups()
        return ConfigError(
            f"{key} must be one value, but it is {values}; --multirun goes through several, and a list stands in [ ]."
        )
    if isinstance(error, MissingMandatoryValue):
        return ConfigError.rule(error.full_key or str(error).rpartition(" ")[2], "be set", "???")
    if isinstance(error, ConfigKeyError | AttributeError) and isinstance(error, OmegaConfBaseException):
        parent = error.parent_node
        known = [str(key) for key in parent] if isinstance(parent, Mapping) else []
        target = parent.get("_target_") if isinstance(parent, Mapping) else None
        section = parent if isinstance(parent, DictConfig) else None
        return unknown_key(error.full_key or "", known, target, section)
    if isinstance(error, InstantiationException) and (made := _MADE.search(str(error))) and error.__cause__:
        target, key = made.groups()
        said = _one_line(str(error.__cause__)).rstrip(".")
        # What a run knows, such as a network's shape, it hands on to what the option leaves open.
        late = "missing" in said and key in (None, "algorithm.client")
        end = ", unless _partial_: true leaves it to the run" if late else ""
        return ConfigError(f"{key or target} must be what {target} takes, but that says: {said}{end}.")
    if isinstance(error, InstantiationException) and (lacks := _LACKS.search(str(error))):
        kind, name, key = lacks.groups()
        return ConfigError(f"{key}.{name} must be given to {kind}, but it is not there.")
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        reason = _without_asides(str(error)).rstrip(".")
        typed = isinstance(error, ValidationError)
        end = "be of its type, but it is not" if typed else "have a value, but it has none"
        return ConfigError(f"{error.full_key} must {end}: {reason}.")
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


def _without_asides(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return _one_line(" ".join(line for line in lines if not line.startswith(_ASIDES)))


def _one_line(text: str) -> str:
    return " ".join(text.split())
