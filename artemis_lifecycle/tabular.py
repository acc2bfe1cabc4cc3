"""Small results as pandas frames. Belongs here: one row per record, typed by the record's fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin, get_type_hints

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

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
