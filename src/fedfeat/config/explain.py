"""One sentence for any error; what Hydra and OmegaConf say is put into the words of our own refusals."""

from collections.abc import Mapping

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from fedfeat.errors import ConfigError, UserError

# Lines that Hydra and OmegaConf add for programmers.
_ASIDES = (
    *("full_key", "object_type", "reference_type"),
    *("Set the environment", "To append", "See https://hydra.cc"),
)


def explain(error: BaseException) -> str:
    """Give one line for the error that ended a run, naming key, rule and value wherever they are known."""
    known = as_user_error(error)
    if known is not None:
        return _one_line(str(known))
    if isinstance(error, OSError) and error.strerror:
        place = error.filename or "The run directory"
        return f"{place} must be usable for this run, but the system says: {error.strerror}."
    text = _without_asides(str(error)) or "no message"
    return f"{text.rstrip('.')} ({type(error).__name__}; debug=true shows where)."


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
        # Hydra gives none for an item of a list, of which `check_choices` refuses those without a folder.
        known = error.options
        rule = f"be one of {', '.join(known)}" if known else f"name a file of configs/{group}"
        return ConfigError.rule(group, rule, option)
    if isinstance(error, OverrideParseException):
        reason = _without_asides(error.message).removeprefix(f"Error parsing override '{error.override}' ")
        return ConfigError(
            f"{error.override} must be key=value as Hydra's grammar has it, but it is not: {reason}."
        )
    if isinstance(error, MissingMandatoryValue):
        return ConfigError.rule(error.full_key or str(error).rpartition(" ")[2], "be set", "???")
    if isinstance(error, ConfigKeyError | AttributeError) and isinstance(error, OmegaConfBaseException):
        parent = error.parent_node
        known = [str(key) for key in parent] if isinstance(parent, Mapping) else []
        return ConfigError.unknown(error.full_key or "", known)
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        reason = _without_asides(str(error))
        return ConfigError(f"{error.full_key} must have a value, but it has none: {reason}.")
    return None


def _without_asides(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return _one_line(" ".join(line for line in lines if not line.startswith(_ASIDES)))


def _one_line(text: str) -> str:
    return " ".join(text.split())
