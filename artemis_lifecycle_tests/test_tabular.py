"""Frames of records keep every value: integers above 2**53, absent ones, and times of no or of a far instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pandas as pd
import pytest

import artemis_lifecycle
from artemis_lifecycle.tabular import Shown, frame_of


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


@dataclass(frozen=True)
class Found(Shown):
    table: str
    files: int
    log: tuple[int, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Several(Found):
    def to_pandas(self) -> pd.DataFrame:
        return pd.DataFrame({"name": [self.table] * self.files})

    def plot(self, kind: str = "png") -> bytes:
        return kind.encode()


HOSTILE = "db.<script>\x1b[31m&"


def test_a_notebook_shows_fields_or_rows_and_a_picture_and_no_markup_of_others() -> None:
    fields, rows = Found(HOSTILE, 3, (1,))._repr_html_(), Several(HOSTILE, 70)._repr_html_()
    assert "<th>files</th><td>3</td>" in fields and "log" not in fields and "<img" not in fields
    assert rows.count("<td>") == 50 and "20 more rows" in rows and "data:image/png;base64,cG5n" in rows
    for html in (fields, rows):
        assert "&lt;script&gt;" in html and "<script" not in html and "\x1b" not in html


def test_a_console_shows_a_result_on_one_line() -> None:
    class Printer(list[str]):
        text = list.append

    printer = Printer()
    Found(HOSTILE, 3, (1,))._repr_pretty_(printer, False)
    assert printer == ["Found(table=db.<script>\\x1b[31m&, files=3)"]


def test_the_package_shows_its_names_and_nothing_else() -> None:
    assert set(dir(artemis_lifecycle)) == {*artemis_lifecycle.__all__, "__version__"}
    assert all(getattr(artemis_lifecycle, name) for name in dir(artemis_lifecycle))
