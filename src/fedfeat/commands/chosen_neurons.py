"""Neurons as a command line names them: ``conv1:3``, ``conv1:0-3,7``, ``conv1:3,fc1:2``."""

import re
from collections.abc import Iterable, Mapping, Sequence

from fedfeat.errors import ConfigError, did_you_mean

_NUMBERS = re.compile(r"(\d+)(?:-(\d+))?")
_MOST = 1_000_000


def parse_neurons(words: Iterable[str], option: str) -> dict[str, list[int]]:
    """Read names of layers with numbers of their neurons; a number without a layer is of the layer before it.

    Args:
        words: What the command line has.
        option: Where it has it, for refusals.

    Raises:
        ConfigError: It cannot be read.
    """
    found: dict[str, list[int]] = {}
    for word in words:
        layer = ""
        for part in word.split(","):
            before, colon, numbers = part.rpartition(":")
            layer = before if colon else layer
            if not layer:
                raise ConfigError.rule(
                    option, "name neurons as layer:neuron, such as conv1:3 or conv1:0-3,7", word
                )
            chosen = found.setdefault(layer, [])
            chosen += [number for number in parse_range(numbers, option, word) if number not in chosen]
    return found


def parse_numbers(word: str, option: str) -> list[int]:
    """Read a list of numbers and ranges, ``0-4,9``.

    Raises:
        ConfigError: It cannot be read.
    """
    return list(dict.fromkeys(n for part in word.split(",") for n in parse_range(part, option, word)))


def parse_range(text: str, option: str, word: str) -> range:
    """Read a number or a range with both its ends; ``word`` is what the option has in all.

    Raises:
        ConfigError: It cannot be read, or goes backwards.
    """
    match = _NUMBERS.fullmatch(text)
    low = int(match[1]) if match else 0
    high = int(match[2] or match[1]) if match else -1
    if high < low:
        raise ConfigError.rule(option, "have numbers such as 3 or ranges such as 0-3", word)
    if high - low >= _MOST:
        raise ConfigError.rule(option, f"have ranges of at most {_MOST:,} numbers", word)
    return range(low, high + 1)


def check_neurons(
    wanted: Mapping[str, Sequence[int]],
    widths: Mapping[str, int],
    names: Mapping[str, str],
    run: str,
    option: str,
) -> dict[str, list[int]]:
    """Find the layers that are meant, by their short names or their paths.

    Args:
        wanted: Layer to neurons, see `parse_neurons`.
        widths: Path of each layer to its number of neurons.
        names: Path to short name.
        run: Name of the run, for refusals.
        option: Of the command line, for refusals.

    Returns:
        Path to neurons.

    Raises:
        ConfigError: The network has no such layer or neuron.
    """
    paths = {name: path for path, name in names.items()} | {path: path for path in widths}
    found: dict[str, list[int]] = {}
    for layer, neurons in wanted.items():
        if layer not in paths:
            raise ConfigError(
                f"{option} must name a layer of {run} ({', '.join(names.values())}), but it names "
                f"{layer!r}{did_you_mean(layer, paths)}"
            )
        path = paths[layer]
        if max(neurons) >= widths[path]:
            rule = f"have neurons from 0 to {widths[path] - 1} for {layer} of {run}"
            raise ConfigError.rule(option, rule, max(neurons))
        chosen = found.setdefault(path, [])
        chosen += [neuron for neuron in neurons if neuron not in chosen]
    return found
