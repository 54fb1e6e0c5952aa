"""Figures of matplotlib as parts of a page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

_SIZE = (4.4, 2.5)
_COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--faint)",
    "#030303": "var(--first)",
    "#040404": "var(--second)",
    "#050505": "var(--third)",
}
_INK, _FAINT, *SERIES = _COLOURS

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rollmill",
    "font.size": 8,
    "text.color": _INK,
    "text.parse_math": False,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _FAINT,
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}


@dataclass(slots=True)
class Drawing:
    """One figure with one pair of axes, and what it looks like once it is drawn."""

    figure: Any
    axes: Any
    svg: Markup = field(default_factory=Markup)


@contextmanager
def drawn(title: str) -> Iterator[Drawing]:
    """Draw in the page's style; `svg` of what this yields is there when the block has ended."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=_SIZE)
        drawing = Drawing(figure, figure.add_subplot())
        yield drawing
        sink = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(sink, format="svg", transparent=True, metadata=nothing)
    drawing.svg = Markup(_embedded(sink.getvalue(), re.sub(r"\W+", "-", title.lower())))


def _embedded(svg: str, prefix: str) -> str:
    """Return what matplotlib wrote as a part of a page: no prolog, ids of its own, colours and font of the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    for colour, variable in _COLOURS.items():
        svg = svg.replace(colour, variable)
    svg = re.sub(r'font-family: [^;"]*;? ?', "", svg)
    opening, _, rest = svg.partition(">")
    return re.sub(r' (width|height)="[^"]*"', "", opening) + f' aria-hidden="true">{rest}'
