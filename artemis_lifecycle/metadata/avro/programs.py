"""Programs of scans: an Avro schema as instructions that skip and take. Source: the Avro specification. Belongs here:
compiling a schema. Does not belong here: running a program (`scan.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artemis_lifecycle.metadata.avro import steps

LONGS = frozenset({"int", "long"})
TEXTS = frozenset({"string", "bytes"})
FIXED = {"boolean": 1, "float": 4, "double": 8, "null": 0}

MOST_STEPS = 100_000
"""Maximum steps of a program: a schema whose types refer to each other may expand beyond any memory."""


@dataclass(frozen=True)
class Program:
    """The program that `walk_records` runs, and the columns that it fills."""

    steps: NDArray[np.int64]
    targets: NDArray[np.int64]
    longs: tuple[str, ...]
    texts: tuple[str, ...]
    widthless: int
    """Number of zero-byte values in a record."""
    plain: int
    """Number of columns that have at least one byte in each record."""


@dataclass(frozen=True)
class Further:
    """What a scan takes besides single numbers and texts.

    `pairs`: the way to an array of pairs -> the keys to take, each with the name of its column. `spans`: the way to a
    value -> the name of the column that gets its encoded bytes. A way through an array has the step `ITEM`; a field
    behind it has `items` columns (`name[0]` and so on) and one that is set only if there are more. Fractions, flags and
    fixed bytes are taken as their bytes, like texts.
    """

    pairs: Mapping[tuple[str, ...], Mapping[int, str]] = dataclass_field(default_factory=dict)
    spans: Mapping[tuple[str, ...], str] = dataclass_field(default_factory=dict)
    items: int = 0


ITEM = "[]"


class _CannotFollow(Exception):  # noqa: N818  (control flow inside this module)
    pass


def compile_scan(schema: Any, fields: Mapping[str, tuple[str, ...]], further: Further | None = None) -> Program | None:
    """Return the program that reads `fields` (name -> the field's way through nested records) from records of `schema`.

    `schema` is parsed JSON without annotations. Fields that it lacks have no column. None if no program can follow the
    schema.
    """
    compiler = _Compiler({way: name for name, way in fields.items()}, further)
    try:
        compiler.add(schema, ())
        return compiler.finish()
    except (_CannotFollow, KeyError, TypeError, RecursionError):
        return None


class _Compiler:
    def __init__(self, wanted: Mapping[tuple[str, ...], str], further: Further | None) -> None:
        self.wanted = wanted
        self.further = further or Further()
        self.takes_fixed = further is not None
        self.plain = 0
        self.steps: list[list[int]] = []
        self.targets: list[int] = []
        self.longs: list[str] = []
        self.texts: list[str] = []
        self.named: dict[str, Any] = {}
        self.open: list[str] = []
        self.added = 0
        self.widthless = 0

    def finish(self) -> Program:
        self._step(steps.END)
        return Program(
            np.array(self.steps, np.int64),
            np.array(self.targets or [0], np.int64),
            tuple(self.longs),
            tuple(self.texts),
            self.widthless,
            self.plain,
        )

    def _step(self, code: int, one: int = 0, two: int = 0) -> int:
        self.steps.append([code, one, two])
        return len(self.steps) - 1

    def add(self, schema: Any, way: tuple[str, ...] | None) -> None:
        """`way` leads to this value through records only; None inside arrays and maps, where nothing is taken."""
        self.added += 1
        if self.added > MOST_STEPS:
            raise _CannotFollow
        span = None if way is None else self.further.spans.get(way)
        if span is not None and schema != "null":
            # Behind a union, only the branch that has a value is the span.
            if isinstance(schema, list):
                self._union(schema, way)
                return
            column = self._column(self.texts, self.longs, span)
            self._step(steps.MARK, column)
            self._value(schema, way)
            self._step(steps.END_MARK, column)
            return
        self._value(schema, way)

    def _value(self, schema: Any, way: tuple[str, ...] | None) -> None:
        if isinstance(schema, list):
            self._union(schema, way)
            return
        kind = schema.get("type") if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            self.add(kind, way)
        elif kind in ("record", "error"):
            self._record(schema, way)
        elif kind in ("array", "map"):
            self._blocks(schema, kind, way)
        elif kind == "fixed":
            self._define(schema)
            self.widthless += not schema["size"]
            self._fixed(int(schema["size"]), way)
        elif kind == "enum":
            self._define(schema)
            self._step(steps.SKIP_LONG)
        elif kind in LONGS:
            name = self._name(way)
            if name is None:
                self._step(steps.SKIP_LONG)
            else:
                self._step(steps.TAKE_LONG, self._taken(self.longs, self.texts, name, way))
        elif kind in TEXTS:
            name = self._name(way)
            if name is None:
                self._step(steps.SKIP_BYTES)
            else:
                self._step(steps.TAKE_BYTES, self._taken(self.texts, self.longs, name, way))
        elif kind in FIXED:
            if FIXED[kind]:
                self._fixed(FIXED[kind], way)
            else:
                self.widthless += 1
        elif isinstance(kind, str) and kind in self.named:
            if kind in self.open:
                raise _CannotFollow
            self.add(self.named[kind], way)
        else:
            raise _CannotFollow

    def _name(self, way: tuple[str, ...] | None) -> str | None:
        return None if way is None else self.wanted.get(way)

    def _fixed(self, size: int, way: tuple[str, ...] | None) -> None:
        name = self._name(way) if self.takes_fixed else None
        if name is None:
            self._step(steps.SKIP_FIXED, size)
        else:
            self._step(steps.TAKE_FIXED, self._taken(self.texts, self.longs, name, way), size)

    def _taken(self, mine: list[str], other: Sequence[str], name: str, way: tuple[str, ...] | None) -> int:
        """Return the column of a value; of the first item's, for a value in an array."""
        if ITEM not in (way or ()):
            if name not in mine:
                self.plain += 1
            return self._column(mine, other, name)
        self._step(steps.INDEX, self.further.items)
        first, *_ = [self._column(mine, other, f"{name}[{item}]") for item in range(self.further.items + 1)]
        return first

    @staticmethod
    def _column(mine: list[str], other: Sequence[str], name: str) -> int:
        if name in other:
            # A union of a number and a text: no column can store it.
            raise _CannotFollow
        if name not in mine:
            mine.append(name)
        return mine.index(name)

    def _define(self, schema: Any) -> None:
        self.named[schema["name"]] = schema

    def _record(self, schema: Any, way: tuple[str, ...] | None) -> None:
        self._define(schema)
        self.widthless += not schema["fields"]
        self.open.append(schema["name"])
        for field in schema["fields"]:
            self.add(field["type"], None if way is None else (*way, field["name"]))
        self.open.pop()

    def _union(self, options: list[Any], way: tuple[str, ...] | None) -> None:
        first = len(self.targets)
        self.targets += [0] * len(options)
        self._step(steps.UNION, first, len(options))
        ends = []
        for number, option in enumerate(options):
            self.targets[first + number] = len(self.steps)
            self.add(option, way)
            # The branch's number takes one byte.
            self.widthless -= option == "null"
            ends.append(self._step(steps.JUMP))
        for end in ends:
            self.steps[end][1] = len(self.steps)

    def _pair(self, items: Any) -> int | None:
        """Return 1 for records of a number and bytes, 0 for records of two numbers; None for anything else."""
        if not isinstance(items, dict) or items.get("type") != "record" or len(items["fields"]) != 2:
            return None
        first, second = (field["type"] for field in items["fields"])
        if not isinstance(first, str) or not isinstance(second, str):
            return None
        if first not in LONGS or second not in LONGS | TEXTS:
            return None
        self._define(items)
        return int(second in TEXTS)

    def _blocks(self, schema: Any, kind: str, way: tuple[str, ...] | None) -> None:
        pair = self._pair(schema["items"]) if kind == "array" else None
        keys = None if way is None else self.further.pairs.get(way)
        if pair is not None and keys is None:
            self._step(steps.SKIP_PAIRS, pair)
            return
        if keys is not None:
            if pair is None:
                raise _CannotFollow
            mine, other = (self.texts, self.longs) if pair else (self.longs, self.texts)
            place = len(self.targets)
            self.targets.append(len(keys))
            for key, name in keys.items():
                self.targets += [key, self._column(mine, other, name)]
            self._step(steps.TAKE_PAIRS, pair, place)
            return
        begin = self._step(steps.BLOCKS)
        if kind == "map":
            self._step(steps.SKIP_BYTES)
        inside = None if way is None or kind == "map" or not self.further.items else (*way, ITEM)
        self.add(schema["items" if kind == "array" else "values"], inside)
        self._step(steps.NEXT, begin + 1)
        self.steps[begin][1] = len(self.steps)
