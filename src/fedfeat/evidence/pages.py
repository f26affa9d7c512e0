"""Pages with parts that are made from stored runs, between two marks.

A part begins with ``<!-- made: NAME key=value ... -->`` and ends with ``<!-- end -->``; all between is replaced.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Mapping

from fedfeat.errors import ConfigError

Maker = Callable[..., str]
"""Makes a part from the values beside its name."""
_PART = re.compile(r"(<!-- made: (\w+)((?: [^\n]*?)?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(text: str, makers: Mapping[str, Maker]) -> str:
    """Make every part of a page again.

    Args:
        text: The page.
        makers: By name of a part.

    Raises:
        ConfigError: A part has an unknown name, or a value that its maker does not take.
    """

    def made(match: re.Match[str]) -> str:
        name = match[2]
        if name not in makers:
            raise ConfigError.unknown(name, makers)
        return f"{match[1]}{makers[name](**_values(name, match[3], makers[name]))}{match[5]}"

    opened, closed = text.count("<!-- made:"), len(_PART.findall(text))
    if opened != closed:
        raise ConfigError(
            f"Every <!-- made: ... --> must have its <!-- end -->, but {opened - closed} has none."
        )
    return _PART.sub(made, text)


def _values(name: str, text: str, maker: Maker) -> dict[str, str]:
    """Read the values of a part, those that its maker takes."""
    try:
        pairs = [word.partition("=")[::2] for word in shlex.split(text)]
        values = dict(pairs)
        inspect.signature(maker).bind(**values)
    except (TypeError, ValueError) as error:  # an open quote is a ValueError
        raise ConfigError.rule(
            f"made: {name}", f"have the values that it takes ({error})", text.strip()
        ) from error
    if len(values) < len(pairs):
        raise ConfigError.rule(f"made: {name}", "have each value once", text.strip())
    return values
