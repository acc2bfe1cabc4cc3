"""Frames of records keep every value: integers above 2**53, absent ones, and times of no or of a far instant."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pandas as pd
import pytest

from artemis_lifecycle.tabular import frame_of


@dataclass(frozen=True)
class Row:
    snapshot_id: int
    parent: int | None
    at: datetime
    until: datetime | None
    price: float | None
    names: tuple[str, ...]
    why: str | None
    large: bool


AT = datetime(2024, 3, 1, 12, 30, 0, 5000, UTC)
ROWS = [
    Row(2**62 + 1, 2**60 + 1, AT, None, None, ("a", "b"), None, True),
    Row(-1, None, AT, AT, 0.5, (), "because", False),
]


@pytest.mark.parametrize("rows", [ROWS, ROWS[:1], []])
def test_every_column_has_its_type_whatever_the_rows_have(rows: list[Row]) -> None:
    frame = frame_of(Row, rows)
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "snapshot_id": "int64",
        "parent": "Int64",
        "at": "datetime64[ms, UTC]",
        "until": "datetime64[ms, UTC]",
        "price": "float64",
        "names": "object",
        "why": "object",
        "large": "bool",
    }
    assert len(frame) == len(rows)


def test_values_come_back_as_they_were() -> None:
    frame = frame_of(Row, ROWS)
    assert frame["snapshot_id"].tolist() == [2**62 + 1, -1]
    assert frame["parent"].tolist() == [2**60 + 1, pd.NA]
    assert frame["at"].tolist() == [AT, AT] and frame["until"].isna().tolist() == [True, False]
    assert frame["names"].tolist() == ["a, b", ""] and frame["why"].tolist() == [None, "because"]
