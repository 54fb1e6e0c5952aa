"""Charts as SVG that takes its colours and its font from the page, so that it suits light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from rollmill.errors import InputError
from rollmill.tasks.report.histogram import Histogram
from rollmill.tasks.report.svg import SERIES, Drawing, drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawn chart: `text` says the same in words, for those who do not see it."""

    title: str
    svg: Markup
    text: str
    note: str = ""


def check_charts() -> None:
    """Raise InputError when the library that draws is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("charts need matplotlib: pip install 'rollmill[report]'") from error


def bars(
    title: str, found: Histogram, *, unit: str, counted: str, names: Sequence[str] = (), stacked: bool = False,
    note: str = "",
) -> Chart:  # fmt: skip
    """Draw how many of what is `counted` are in each bin; several series stand side by side, or on each other."""
    text = _in_words(found, unit, names or [counted])
    if not found.num_bins:
        return Chart(title=title, svg=Markup('<p class="empty">nothing to draw</p>'), text=text, note=note)
    with drawn(title) as drawing:
        axes = drawing.axes
        if found.values is None:
            _draw_ranges(axes, found, stacked)
        else:
            _draw_values(axes, found, stacked)
        axes.set_xlabel(unit)
        axes.set_ylabel(counted)
        axes.grid(axis="y")
        axes.yaxis.get_major_locator().set_params(integer=True)
        if names:
            _legend(drawing, names)
    return Chart(title=title, svg=drawing.svg, text=text, note=note)


def rows(title: str, labels: Sequence[str], series: Sequence[Sequence[int]], names: Sequence[str] = ()) -> Chart:
    """Draw one labelled bar a count across the chart, with the count and its share at its end."""
    with drawn(title) as drawing:
        axes = drawing.axes
        height = 0.8 / len(series)
        for place, counts in enumerate(series):
            offsets = [row + (place - (len(series) - 1) / 2) * height for row in range(len(labels))]
            lines = axes.barh(offsets, counts, height=height * 0.9, color=SERIES[place])
            total = sum(counts) or 1
            axes.bar_label(lines, [f"{count:,} ({count / total:.1%})" for count in counts], padding=3)
        axes.set_yticks(range(len(labels)), labels)
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.margins(x=0.38)
        if names:
            _legend(drawing, names)
    words = [f"{label}: " + ", ".join(f"{counts[place]}" for counts in series) for place, label in enumerate(labels)]
    return Chart(title=title, svg=drawing.svg, text="; ".join(words))


def _draw_values(axes: Any, found: Histogram, stacked: bool) -> None:
    places = range(found.num_bins)
    width = 0.8 if stacked else 0.8 / len(found.counts)
    below = [0] * found.num_bins
    for place, counts in enumerate(found.counts):
        shift = 0.0 if stacked else (place - (len(found.counts) - 1) / 2) * width
        axes.bar([bin + shift for bin in places], counts, width=width * 0.95, bottom=below, color=SERIES[place])
        below = [low + count for low, count in zip(below, counts, strict=True)] if stacked else below
    axes.set_xticks(list(places), [f"{value:.3g}" for value in found.values or ()])


def _draw_ranges(axes: Any, found: Histogram, stacked: bool) -> None:
    below = [0] * found.num_bins
    widths = [high - low for low, high in zip(found.edges, found.edges[1:], strict=False)]
    for place, counts in enumerate(found.counts):
        width = [each if stacked else each / len(found.counts) for each in widths]
        lefts = [low + (0.0 if stacked else place * each) for low, each in zip(found.edges, width, strict=False)]
        axes.bar(lefts, counts, width=[each * 0.94 for each in width], bottom=below, align="edge", color=SERIES[place])
        below = [low + count for low, count in zip(below, counts, strict=True)] if stacked else below


def _legend(drawing: Drawing, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=SERIES[place], label=name) for place, name in enumerate(names)]
    drawing.figure.legend(handles=patches, loc="outside upper left", ncols=len(names), handlelength=1, handleheight=1)


def _in_words(found: Histogram, unit: str, names: Sequence[str]) -> str:
    """Return the counts as text."""
    if found.values is not None:
        labels = [f"{value:g}" for value in found.values]
    else:
        labels = [f"{low:g} to {high:g}" for low, high in zip(found.edges, found.edges[1:], strict=False)]
    series = [
        f"{name}: " + ", ".join(f"{label}: {count}" for label, count in zip(labels, counts, strict=True) if count)
        for name, counts in zip(names, found.counts, strict=False)
    ]
    return f"{unit}; {'; '.join(series)}"
