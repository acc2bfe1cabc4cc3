"""Small results as pandas frames, and in notebooks. Belongs here: one row per record, typed by the record's fields."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np

from artemis_lifecycle.escaping import html, terminal

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS, _MOST_CHARACTERS = 50, 300


class Shown:
    """A result that a notebook shows as a table: its rows where it has `to_pandas`, else its public fields; below, its
    picture where it has `plot`. A console shows it on one line."""

    def _repr_html_(self) -> str:
        name = f"<strong>{html(type(self).__name__)}</strong>"
        if (to_pandas := getattr(self, "to_pandas", None)) is not None:
            frame = to_pandas()
            head = frame.head(_MOST_ROWS).map(lambda value: terminal(value) if isinstance(value, str) else value)
            left = f"<p>{len(frame) - _MOST_ROWS:,} more rows: to_pandas()</p>" if len(frame) > _MOST_ROWS else ""
            table = head.to_html(index=False, border=0) + left
        else:
            rows = "".join(f"<tr><th>{html(key)}</th><td>{html(text)}</td></tr>" for key, text in self._texts())
            table = f"<table>{rows}</table>"
        plot = getattr(self, "plot", None)
        picture = "" if plot is None else f'<img src="data:image/png;base64,{b64encode(plot()).decode()}">'
        return f"<div>{name}{table}{picture}</div>"

    def _repr_pretty_(self, printer: Any, _: bool) -> None:
        texts = ", ".join(f"{key}={text}" for key, text in self._texts() if len(text) < _MOST_CHARACTERS)
        printer.text(terminal(f"{type(self).__name__}({texts})"))

    def _texts(self) -> list[tuple[str, str]]:
        shown = [each.name for each in fields(self) if each.repr]  # type: ignore[arg-type]
        texts = [(name, str(getattr(self, name))) for name in shown]
        return [(name, text[:_MOST_CHARACTERS] + "…" * (len(text) > _MOST_CHARACTERS)) for name, text in texts]


_TYPES = {int: "int64", float: "float64", bool: "bool"}


def frame_of(kind: type, records: Sequence[object]) -> pd.DataFrame:
    """Return one row per record of the dataclass `kind`, and one column per field.

    int is int64 (Int64, which has NA, where None is allowed), float float64, bool bool, datetime datetime64[ms, UTC];
    a tuple of texts is one text joined by commas; all else is object.
    """
    import pandas as pd

    columns: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        values = [getattr(record, name) for record in records]
        optional = isinstance(hint, UnionType)
        plain = next(each for each in get_args(hint) if each is not NoneType) if optional else hint
        if plain is datetime:
            # Not through nanoseconds, which hold no year after 2262.
            naive = [None if each is None else each.astimezone(UTC).replace(tzinfo=None) for each in values]
            columns[name] = pd.Series(np.array(naive, "datetime64[ms]")).dt.tz_localize("UTC")
        elif get_origin(plain) is tuple:
            columns[name] = pd.Series([", ".join(texts) for texts in values], dtype="object")
        else:
            dtype = "Int64" if optional and plain is int else _TYPES.get(plain, "object")
            columns[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(columns)
