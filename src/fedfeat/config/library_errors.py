"""What Hydra and OmegaConf refuse, in the words of our own refusals."""

import re
from collections.abc import Mapping

from hydra.errors import (
    ConfigCompositionException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException, ValidationError

from fedfeat.config.hints import unknown_key
from fedfeat.config.search_path import CONFIGS, options_in, override_of
from fedfeat.errors import ConfigError

# Lines that Hydra and OmegaConf add for programmers.
_ASIDES = (
    *("full_key", "object_type", "reference_type"),
    *("Set the environment", "To append", "See https://hydra.cc"),
)
# Of ours, an error that is no refusal is a mistake in the program.
_MADE = re.compile(r"Error in call to target '(?!fedfeat\.)([^']+)'(?:.*full_key: (\S+))?", re.DOTALL)
# A part that is built around another has none where it takes the other's place itself.
_LACKS = re.compile(
    r"'fedfeat\.\S+\.(\w+)'.*missing \d+ required .*?arguments?: '(\w+)'.*full_key: (\S+)", re.DOTALL
)
_DELETED = re.compile(r"Could not delete from config\. '(\S+)' does not exist")
_NO_PLACE = re.compile(r"Could not override '(\S+)'\.\s+Did you mean to override (?:one of )?(.+)\?")
_THERE = re.compile(r"Could not append to config\. An item is already at '(\S+)'")
_SEVERAL = re.compile(r"Ambiguous value for argument '([^'=]+)=(.*?)'\n")
_TWICE = re.compile(r"Multiple values for ([^\s.]+)|(\S+) appears more than once")

_OPENING = ("", *"[{('\"")
"""How a value begins that is none, a list, a dictionary, a choice or quoted, with a mistake in it."""


def of_library(error: BaseException) -> ConfigError | None:
    """Give the refusal that an error of Hydra or OmegaConf stands for, or None."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        # Without a group it is the primary configuration, for whose name Hydra gives no options.
        known = error.options or (() if group else options_in([CONFIGS], ""))
        rule = f"be one of {', '.join(known)}" if known else f"name a file of configs/{group}"
        return ConfigError.rule(group or "--config-name", rule, option, known)
    if isinstance(error, OverrideParseException):
        reason = without_asides(error.message).removeprefix(f"Error parsing override '{error.override}' ")
        rule = f"{error.override} must be key=value as Hydra's grammar has it, but it is not: {reason}"
        key, _, value = error.override.partition("=")
        if value[:1] in _OPENING:
            return ConfigError(f"{rule}.")
        return ConfigError(f'{rule}; signs of its own stand in quotes: "{override_of(key, value)}".')
    if isinstance(error, ConfigCompositionException) and (found := _of_composition(str(error))):
        return found
    if isinstance(error, InstantiationException) and (found := _of_target(str(error), error.__cause__)):
        return found
    return _of_omegaconf(error) if isinstance(error, OmegaConfBaseException) else None


def _of_composition(text: str) -> ConfigError | None:
    if twice := _TWICE.match(text):
        group = twice[1] or twice[2]
        return ConfigError(
            f"{group} must be chosen once, but it is twice; a group that has an option takes another as "
            f"{group}=<name>, and --multirun goes through several with commas between."
        )
    if deleted := _DELETED.match(text):
        return ConfigError(f"{deleted[1]} must have a value to be deleted, but it has none.")
    if there := _THERE.match(text):
        return ConfigError(f"{there[1]} must be given without a + where it has a value already.")
    if (nowhere := _NO_PLACE.match(text)) and "@" in nowhere[1]:
        key, places = nowhere.groups()
        return ConfigError(
            f"{key} must name a place that the configuration has ({places}), but it has no such place."
        )
    if several := _SEVERAL.match(text):
        key, values = several.groups()
        return ConfigError(
            f"{key} must be one value, but it is {values}; --multirun goes through several, and a list stands in [ ]."
        )
    return None


def _of_target(text: str, cause: BaseException | None) -> ConfigError | None:
    if cause and (made := _MADE.search(text)):
        target, key = made.groups()
        said = one_line(str(cause)).rstrip(".")
        # What a run knows, such as a network's shape, it hands on to what the option leaves open.
        late = "missing" in said and key in (None, "algorithm.client")
        end = ", unless _partial_: true leaves it to the run" if late else ""
        return ConfigError(f"{key or target} must be what {target} takes, but that says: {said}{end}.")
    if lacks := _LACKS.search(text):
        kind, name, key = lacks.groups()
        return ConfigError(f"{key}.{name} must be given to {kind}, but it is not there.")
    return None


def _of_omegaconf(error: OmegaConfBaseException) -> ConfigError | None:
    if isinstance(error, MissingMandatoryValue):
        return ConfigError.rule(error.full_key or str(error).rpartition(" ")[2], "be set", "???")
    if isinstance(error, ConfigKeyError | AttributeError):
        parent = error.parent_node
        known = [str(key) for key in parent] if isinstance(parent, Mapping) else []
        target = parent.get("_target_") if isinstance(parent, Mapping) else None
        section = parent if isinstance(parent, DictConfig) else None
        return unknown_key(error.full_key or "", known, target, section)
    if error.full_key:
        reason = without_asides(str(error)).rstrip(".")
        typed = isinstance(error, ValidationError)
        end = "be of its type, but it is not" if typed else "have a value, but it has none"
        return ConfigError(f"{error.full_key} must {end}: {reason}.")
    return None


def without_asides(text: str) -> str:
    """Give a text as one line, without the lines that are for programmers."""
    lines = (line.strip() for line in text.splitlines())
    return one_line(" ".join(line for line in lines if not line.startswith(_ASIDES)))


def one_line(text: str) -> str:
    """Give a text as one line."""
    return " ".join(text.split())
