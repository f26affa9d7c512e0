"""Pages with parts that are made from stored runs, between two marks.

A part begins with ``<!-- made: NAME key=value ... -->`` and ends with ``<!-- end -->``; all between is replaced.
"""

from __future__ import annotations

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
        name, words = match[2], shlex.split(match[3])
        if name not in makers:
            raise ConfigError.unknown(name, makers)
        values = dict(word.partition("=")[::2] for word in words)
        return f"{match[1]}{makers[name](**values)}{match[5]}"

    opened, closed = text.count("<!-- made:"), len(_PART.findall(text))
    if opened != closed:
        raise ConfigError(
            f"Every <!-- made: ... --> must have its <!-- end -->, but {opened - closed} has none."
        )
    return _PART.sub(made, text)
