"""The content of LaTeX boxes."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\\\\|\\[{}]|(?P<box>\\(?:boxed|fbox)\s*\{)|(?P<open>\{)|(?P<close>\})")


def last_boxed(text: str) -> str | None:
    r"""Return what the last closed `\boxed{…}` or `\fbox{…}` of `text` holds, inner braces included; None without one.

    It takes one pass, so that an answer of nothing but opened boxes takes no longer than any other.

        >>> last_boxed(r"so \boxed{\frac{1}{2}} and not \boxed{3")
        '\\frac{1}{2}'
    """
    if "boxed" not in text and "fbox" not in text:
        return None
    last: tuple[int, int] | None = None
    opened: list[int | None] = []  # where a box's content starts; None for an ordinary brace
    for token in _TOKEN.finditer(text):
        if token["box"] or token["open"]:
            opened.append(token.end() if token["box"] else None)
        elif token["close"] and opened:
            start = opened.pop()
            if start is not None and (last is None or start > last[0]):
                last = (start, token.start())
    return None if last is None else text[slice(*last)]
