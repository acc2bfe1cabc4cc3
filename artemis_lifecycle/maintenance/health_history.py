"""A table's scores over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

from artemis_lifecycle.expiration.pictures import drawn, new_figure
from artemis_lifecycle.maintenance.score import PARTS
from artemis_lifecycle.operations.health import HealthPoint

if TYPE_CHECKING:
    import pandas as pd

_PALETTE = ("#c0392b", "#e59866", "#1f6f8b", "#7fb3d5", "#34495e", "#8e44ad", "#27ae60", "#b7950b", "#7f8c8d")
_COLORS = dict(zip(PARTS, cycle(_PALETTE), strict=False))


@dataclass(frozen=True)
class HealthHistory:
    """The scores that were recorded of a table, oldest first."""

    table: str
    points: Sequence[HealthPoint]

    def to_pandas(self) -> pd.DataFrame:
        """One row per score: scored_at datetime64[ms, UTC]; score, and one column per part (NaN: unknown),
        float64."""
        import pandas as pd

        times = pd.to_datetime([point.scored_at for point in self.points], utc=True).astype("datetime64[ms, UTC]")
        columns = {name: [point.parts.get(name) for point in self.points] for name in PARTS}
        scores = {"score": [point.score for point in self.points], **columns}
        return pd.DataFrame({"scored_at": times, **{name: pd.Series(v, dtype="float64") for name, v in scores.items()}})

    def plot(self, kind: str = "png") -> bytes:
        """Return a picture: the newest scores of the parts, and all scores over time."""
        figure = new_figure(11, 3.5)
        now, past = figure.subplots(1, 2)
        newest = self.points[-1].parts if self.points else {}
        names = PARTS[::-1]
        labels = [name.replace("_", " ") for name in names]
        bars = now.barh(labels, [newest.get(name) or 0 for name in names], color=[_COLORS[name] for name in names])
        now.bar_label(bars, [self._label(newest.get(name)) for name in names], padding=3, fontsize=8)
        now.set(xlim=(0, 115), title=f"{self.table}: {self.points[-1].score:.0f} of 100" if self.points else self.table)
        times: list[Any] = [point.scored_at for point in self.points]
        past.plot(times, [point.score for point in self.points], marker="o", color="black", linewidth=2, label="score")
        for name in PARTS:
            scores: list[Any] = [point.parts.get(name) for point in self.points]
            if any(each is not None and each < 100 for each in scores):
                past.plot(times, scores, color=_COLORS[name], label=name.replace("_", " "))
        past.set(ylim=(0, 105), title="Scores over time")
        past.legend(fontsize=8)
        past.tick_params(axis="x", labelsize=8, rotation=20)
        return drawn(figure, kind)

    @staticmethod
    def _label(score: float | None) -> str:
        return "unknown" if score is None else f"{score:.0f}"
