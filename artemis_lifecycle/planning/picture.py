"""A query's plan as a picture: what each pass leaves, and what maintenance would spare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from artemis_lifecycle.expiration.pictures import drawn, label, new_figure, size_unit
from artemis_lifecycle.planning.advice import Advice
from artemis_lifecycle.planning.passes import Pass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEFT, _PRUNED, _SPARED = "#1f6f8b", "#d5dde3", "#e59866"


def plan_picture(title: str, passes: Sequence[Pass], advice: Sequence[Advice], kind: str) -> bytes:
    """Return the picture of a plan, as `png` or `svg`."""
    figure = new_figure(11, 3.6)
    figure.suptitle(label(title, 100), fontsize=10)
    panels = figure.subplots(1, 2 if advice else 1, squeeze=False)[0]
    _passes(panels[0], passes)
    if advice:
        _advice(panels[1], advice)
    return drawn(figure, kind)


def _passes(panel: Axes, every: Sequence[Pass]) -> None:
    """Shares of what each pass gets; counts and bytes beside them. The first pass is on top."""
    passes = every[::-1]
    names = [each.name for each in passes]
    left = [100 * each.selected / each.total if each.total else 0 for each in passes]
    panel.barh(names, left, color=_LEFT, label="read on")
    bars = panel.barh(names, [100 - each for each in left], left=left, color=_PRUNED, label="pruned")
    texts = []
    for each in passes:
        unit, name = size_unit(each.bytes_selected)
        texts.append(f" {each.selected:,} of {each.total:,}, {each.bytes_selected / unit:,.1f} {name}")
    panel.bar_label(bars, texts, padding=2, fontsize=8)
    panel.set(xlabel="% of what the pass gets", title="What each pass leaves", xlim=(0, 190))
    panel.set_xticks([0, 25, 50, 75, 100])
    panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncol=2)


def _advice(panel: Axes, advice: Sequence[Advice]) -> None:
    found = advice[::-1]
    bars = panel.barh([each.kind for each in found], [each.seconds_saved for each in found], color=_SPARED)
    panel.bar_label(bars, [f" {each.now:,} → {each.then:,} reads" for each in found], padding=2, fontsize=8)
    panel.margins(x=0.45)
    panel.set(xlabel="seconds, one request after another", title="What maintenance would spare")
