"""The plots of the fleet page, as SVG without scripts, fonts or addresses. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from artemis_lifecycle.escaping import terminal

_WIDTH, _HEIGHT, _TOP, _LEFT, _FOOT = 360, 150, 14, 62, 18
_INNER, _TALL = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - _FOOT
_ROW = 22


def bars(title: str, names: Sequence[str], values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return a plot of one bar per name, from left to right."""
    most = max(values, default=0)
    step = _INNER / max(1, len(values))
    marks = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        height = _TALL * value / most if most else 0
        left, top = _LEFT + place * step, _TOP + _TALL - height
        # The whole column shows its value under the pointer, however low its bar is.
        marks.append(
            f"<g><title>{_text(name)}: {_text(shown(value))}</title>"
            f"<rect x='{left:.1f}' y='{_TOP}' width='{step:.1f}' height='{_TALL}' fill='transparent'/>"
            f"<rect class=mark x='{left + 1:.1f}' y='{top:.1f}' width='{max(1.0, step - 2):.1f}' "
            f"height='{height:.1f}'/></g>"
        )
    return _figure(title, _axes(names, most, shown) + "".join(marks), _HEIGHT)


def line(title: str, names: Sequence[str], values: Sequence[float | None], shown: Callable[[float], str]) -> str:
    """Return a plot of a line through the known values, from left to right. A value of None leaves a gap."""
    most = max((value for value in values if value is not None), default=0)
    step = _INNER / max(1, len(values))
    marks, path, is_down = [], "", False
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        if value is None:
            is_down = False
            continue
        x, y = _LEFT + (place + 0.5) * step, _TOP + _TALL * (1 - value / most if most else 1)
        path += f"{'L' if is_down else 'M'}{x:.1f} {y:.1f}"
        is_down = True
        label = f"<title>{_text(name)}: {_text(shown(value))}</title>"
        marks.append(f"<circle class=mark cx='{x:.1f}' cy='{y:.1f}' r='2.5'>{label}</circle>")
    return _figure(title, _axes(names, most, shown) + f"<path class=line d='{path}'/>" + "".join(marks), _HEIGHT)


def ranks(title: str, names: Sequence[str], values: Sequence[float], shown: Callable[[float], str]) -> str:
    """Return a plot of one bar per name, from top to bottom."""
    most = max(values, default=0)
    marks = []
    for place, (name, value) in enumerate(zip(names, values, strict=True)):
        width, top = (_WIDTH - 8) * value / most if most else 0, _TOP + place * _ROW
        marks.append(
            f"<text x='0' y='{top - 2}'>{_text(name)}</text>"
            f"<text x='{_WIDTH - 8}' y='{top - 2}' text-anchor='end'>{_text(shown(value))}</text>"
            f"<rect class=mark x='0' y='{top + 1}' width='{width:.1f}' height='5'/>"
        )
    return _figure(title, "".join(marks), max(_HEIGHT, _TOP + len(values) * _ROW))


def _axes(names: Sequence[str], most: float, shown: Callable[[float], str]) -> str:
    foot = _TOP + _TALL
    ends = [(_LEFT, "start", names[0]), (_WIDTH - 8, "end", names[-1])] if names else []
    return (
        f"<path class=axis d='M{_LEFT} {_TOP}H{_WIDTH - 8}M{_LEFT} {foot}H{_WIDTH - 8}'/>"
        f"<text x='{_LEFT - 5}' y='{_TOP + 4}' text-anchor='end'>{_text(shown(most)) if most else ''}</text>"
        f"<text x='{_LEFT - 5}' y='{foot + 4}' text-anchor='end'>0</text>"
        + "".join(
            f"<text x='{x}' y='{foot + 14}' text-anchor='{anchor}'>{_text(name)}</text>" for x, anchor, name in ends
        )
    )


def _figure(title: str, body: str, height: int) -> str:
    name = _text(title)
    return (
        f"<figure><figcaption>{name}</figcaption>"
        f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' aria-label='{name}'>{body}</svg></figure>"
    )


def _text(text: str) -> str:
    return escape(terminal(text), quote=True)
