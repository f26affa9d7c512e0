"""One sentence for any error; what Hydra and OmegaConf say is put into the words of our own refusals."""

from collections.abc import Iterator, Mapping

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from fedfeat.errors import ConfigError, UserError

# Lines that Hydra and OmegaConf add for programmers.
_ASIDES = (
    "full_key",
    "object_type",
    "reference_type",
    "Set the environment",
    "To append",
    "See https://hydra.cc",
)


def explain(error: BaseException) -> str:
    """Give one line for any error, naming key, rule and value wherever they are known.

    Args:
        error: What ended the run.
    """
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

    Args:
        error: What ended the run; Hydra wraps what a constructor raises.
    """
    for inner in _chain(error):
        if isinstance(inner, UserError):
            return inner
        sentence = _of_library(inner)
        if sentence is not None:
            return ConfigError(sentence)
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _of_library(error: BaseException) -> str | None:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        # Hydra gives none for an item of a list, of which `check_choices` refuses those without a folder.
        known = error.options
        rule = f"be one of {', '.join(known)}" if known else f"name a file of configs/{group}"
        return str(ConfigError.rule(group, rule, option))
    if isinstance(error, OverrideParseException):
        reason = _without_asides(error.message).removeprefix(f"Error parsing override '{error.override}' ")
        return f"{error.override} must be key=value as Hydra's grammar has it, but it is not: {reason}."
    if isinstance(error, MissingMandatoryValue):
        return str(ConfigError.rule(error.full_key or str(error).rpartition(" ")[2], "be set", "???"))
    if isinstance(error, ConfigKeyError | AttributeError) and isinstance(error, OmegaConfBaseException):
        parent = error.parent_node
        known = [str(key) for key in parent] if isinstance(parent, Mapping) else []
        return str(ConfigError.unknown(error.full_key or "", known))
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key} must have a value, but it has none: {_without_asides(str(error))}."
    return None


def _without_asides(text: str) -> str:
    lines = (line.strip() for line in text.splitlines())
    return _one_line(" ".join(line for line in lines if not line.startswith(_ASIDES)))


def _one_line(text: str) -> str:
    return " ".join(text.split())
