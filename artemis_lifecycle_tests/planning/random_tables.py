"""Random tables and random predicates, made through Iceberg's own API: no data file exists."""

from __future__ import annotations

import json
import math
import random
import struct
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyiceberg.expressions
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.literals import DateLiteral, DecimalLiteral, TimeLiteral, TimestampLiteral
from pyiceberg.types import DecimalType, NestedField

from artemis_lifecycle_tests.planning.iceberg_planner import IcebergPlanner, Long

# Its constructors return other classes than their own.
ex: Any = pyiceberg.expressions

TYPES = (
    "int",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "decimal(9, 2)",
    "decimal(30, 4)",
    "date",
    "time",
    "timestamp",
    "timestamptz",
    "uuid",
    "boolean",
    "fixed[3]",
)
NANOSECONDS = ("timestamp_ns", "timestamptz_ns")
"""Of format version 3. pyiceberg has no literals of them."""
CONTAINERS = ("struct", "list", "map")
_PARENTS = ("", "", "", "s", "s", "s.t")
_NAMES = ("c{}", "c{}", "c{}", "c.{}", 'q"{}', "k'{}", "É{}")
PROMOTED = {"int": "long", "float": "double", "decimal(9, 2)": "decimal(20, 2)"}
FLOATS = ("float", "double")
_TEXTS = ("", "a", "ab", "abc", "abcd", "b", "ba", "é", "éa", "zz", "\uffee", "\U0001f600", "a\U0001f600", "ab\x00")
_INTS = (0, 1, -1, 5, 9, 10, 11, -10, -11, 100, 2**31 - 1, -(2**31), 7, 8, 20)
_DAYS = (0, -1, 1, 364, 365, -365, -366, 19_000, 19_001, -400)
_DAY = 86_400_000_000


@dataclass
class Column:
    id: int
    name: str
    kind: str
    required: bool = False
    """The column and all structs around it."""
    parent: str = ""


def iceberg_type(kind: str) -> Any:
    return NestedField.model_validate(
        {"id": 1, "name": "c", "type": kind.replace(" ", ""), "required": False}
    ).field_type


def value_of(dice: random.Random, kind: str) -> Any:
    """Return a value of that type, as pyiceberg has it; never NaN."""
    if kind == "int":
        return dice.choice(_INTS)
    if kind == "long":
        return dice.choice((*_INTS, 2**40, -(2**40), 2**63 - 1, -(2**63)))
    if kind in FLOATS:
        return dice.choice((0.0, -0.0, 1.0, -1.0, 0.1, 1.5, -7.25, 1e30, math.inf, -math.inf, 3.0))
    if kind == "string":
        return dice.choice(_TEXTS)
    if kind == "binary":
        return dice.choice((b"", b"\x00", b"a", b"ab", b"\xff", b"\xff\x00", b"\x7f", b"a\x00"))
    if kind.startswith("decimal"):
        scale = int(kind.split(",")[1].rstrip(") "))
        big = (10**28, -(10**28), 10**18) if kind.startswith("decimal(30") else ()
        unscaled = dice.choice((0, 1, -1, 99, 100, -100, 128, -128, 255, 256, 12_345, *big))
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))
    if kind == "date":
        return dice.choice(_DAYS)
    if kind in NANOSECONDS:
        return value_of(dice, "timestamp") * 1000 + dice.choice((0, 0, 1, 999))
    if kind == "time":
        return dice.choice((0, 1, 3_600_000_000, 43_200_000_000, _DAY - 1))
    if kind.startswith("timestamp"):
        return dice.choice(_DAYS) * _DAY + dice.choice((0, 1, -1, 3_600_000_000, 3_599_999_999))
    if kind == "uuid":
        return uuid.UUID(int=dice.choice((0, 1, 2**63, 2**64, 2**127, 2**128 - 1, 2**127 + 5, 2**64 + 2**63)))
    if kind == "boolean":
        return dice.random() < 0.5
    return dice.choice((b"abc", b"\x00\x00\x00", b"\xff\xff\xff", b"ab\x00"))


def hexed(kind: str, value: Any) -> str:
    return to_bytes(iceberg_type(kind), value).hex()


def order(kind: str, value: Any) -> Any:
    """A key by which bounds of this type are made: lower is not above upper."""
    if kind == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    if kind in FLOATS:
        return (value, math.copysign(1, value))
    if kind == "string":
        return value.encode()
    if kind == "uuid":
        high, low = value.int >> 64, value.int & (2**64 - 1)
        return tuple(half - 2**64 if half >= 2**63 else half for half in (high, low))
    return value


@dataclass
class RandomTable:
    """A table while it grows. `columns` are the current ones; `retired` names stand for dropped columns."""

    planner: IcebergPlanner
    dice: random.Random
    location: str
    version: int = 2
    columns: list[Column] = field(default_factory=list)
    files: list[tuple[str, int, str]] = field(default_factory=list)
    vectors: set[str] = field(default_factory=set)
    snapshots: list[int] = field(default_factory=list)
    structs: dict[str, bool] = field(default_factory=dict)
    """The structs' paths, and whether they and all around them are required."""
    table: Any = None
    count: int = 0

    def make(self) -> RandomTable:
        dice = self.dice
        self.version = dice.choice((1, 2, 2, 2, 3, 4))
        kinds = dice.sample(TYPES + NANOSECONDS * (self.version >= 3), dice.randint(3, 7))
        if self.version == 1 and dice.random() < 0.5:
            kinds.append("int")
        schema = {"type": "struct", "schema-id": 0, "fields": self._fields(kinds)}
        fields: list[dict[str, Any]] = []
        for column in dice.sample(self.columns, dice.randint(0, min(3, len(self.columns)))):
            for transform in self._transforms(column.kind)[: dice.choice((1, 1, 1, 2))]:
                name = f"p{len(fields)}"
                fields.append(
                    {"name": name, "transform": transform, "source-id": column.id, "field-id": 1000 + len(fields)}
                )
        spec = {"spec-id": 0, "fields": self._distinct(fields)}
        properties = {
            "format-version": str(self.version),
            "commit.manifest-merge.enabled": dice.choice(("true", "false")),
            "commit.manifest.min-count-to-merge": "3",
        }
        self.table = self.planner.create(json.dumps(schema), json.dumps(spec), self.location, properties)
        for column in self.columns:
            # Iceberg numbers the columns of a new table itself.
            column.id = self.table.schema().findField(column.name).fieldId()
        for _ in range(dice.randint(2, 7)):
            self._step()
        self.table.refresh()
        return self

    def _fields(self, kinds: list[str]) -> list[dict[str, Any]]:
        """Return the fields of a new table, some of them in structs, and note them as columns."""
        dice = self.dice
        structs: dict[str, list[dict[str, Any]]] = {"": [], "s": [], "s.t": []}
        always = {"s": dice.random() < 0.4, "s.t": dice.random() < 0.4}
        self.structs = {"s": always["s"], "s.t": always["s"] and always["s.t"]}
        for number, kind in enumerate(kinds):
            parent, name = dice.choice(_PARENTS), dice.choice(_NAMES).format(number)
            if number == 0:
                parent, name = "", "c0"
            required = dice.random() < 0.15
            structs[parent].append(
                {"id": number + 1, "name": name, "type": kind.replace(", ", ","), "required": required}
            )
            whole = required and self.structs.get(parent, True)
            path = f"{parent}.{name}" if parent else name
            self.columns.append(Column(number + 1, path, kind, whole, parent))
        for path in ("s.t", "s"):
            inside = {"type": "struct", "fields": structs[path]}
            outside, name = structs[path.rpartition(".")[0]], path[-1]
            place = dice.randint(0, len(outside))
            outside.insert(place, {"id": 100 + len(path), "name": name, "type": inside, "required": always[path]})
        element = {"type": "struct", "fields": [{"id": 201, "name": "x", "type": "int", "required": False}]}
        items: dict[str, Any] = {"type": "list", "element-id": 202, "element": element, "element-required": False}
        pairs: dict[str, Any] = {"type": "map", "key-id": 203, "key": "string"}
        pairs |= {"value-id": 204, "value": "long", "value-required": False}
        for number, container in enumerate((items, pairs)):
            if dice.random() < 0.3:
                structs[""].append({"id": 210 + number, "name": f"many{number}", "type": container, "required": False})
        return structs[""]

    @staticmethod
    def _distinct(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """One time transform for each column, and no transform twice: Iceberg refuses others."""
        seen: set[tuple[int, str]] = set()
        kept: list[dict[str, Any]] = []
        for each in fields:
            group = "time" if each["transform"] in ("year", "month", "day", "hour") else each["transform"]
            if (each["source-id"], group) not in seen:
                seen.add((each["source-id"], group))
                kept.append({**each, "field-id": 1000 + len(kept)})
        return kept

    def _transforms(self, kind: str) -> list[str]:
        # Iceberg 1.12 writes a fixed partition value with a length, which Avro's fixed does not have: to this project
        # such a manifest is unreadable.
        found = ["void"] if kind.startswith("fixed") else ["identity", "void"]
        if kind not in ("boolean", "float", "double"):
            found += [f"bucket[{self.dice.choice((2, 3, 16))}]"] * 2
        if kind in ("int", "long", "string", "binary") or kind.startswith("decimal"):
            found += [f"truncate[{self.dice.choice((1, 2, 10))}]"] * 2
        if kind == "date" or kind.startswith("timestamp"):
            found += ["year", "month", "day"] + ["hour"] * (kind != "date")
        self.dice.shuffle(found)
        return found

    def _step(self) -> None:
        what = self.dice.random()
        if what < 0.6 or not self.files:
            self._append()
        elif what < 0.75 and self.version > 1:
            self._delete()
        elif what < 0.83:
            self._evolve_spec()
        elif what < 0.94:
            self._evolve_schema()
        else:
            self._remove()
        self.table.refresh()
        current = self.table.currentSnapshot()
        if current is not None and (not self.snapshots or self.snapshots[-1] != current.snapshotId()):
            self.snapshots.append(current.snapshotId())

    def _append(self) -> None:
        append = self.table.newAppend() if self.dice.random() < 0.5 else self.table.newFastAppend()
        spec = self.table.spec().specId()
        for _ in range(self.dice.randint(1, 5)):
            self.count += 1
            path = f"{self.location}/data/{self.count}.parquet"
            records = self.dice.choice((0, 1, 5, 100, 100, 100))
            words = self._words(spec)
            stats = self._stats(records, self.columns)
            append.appendFile(
                self.planner.call("dataFile", self.table, spec, path, "parquet", Long(records), words, stats)
            )
            self.files.append((path, spec, words))
        append.commit()

    def _remove(self) -> None:
        path, _, _ = self.dice.choice(self.files)
        delete = self.table.newDelete()
        delete.deleteFile(path)
        delete.commit()
        self.files = [each for each in self.files if each[0] != path]

    def _delete(self) -> None:
        delta = self.table.newRowDelta()
        for _ in range(self.dice.randint(1, 3)):
            self.count += 1
            path = f"{self.location}/data/{self.count}-deletes"
            target, spec, words = self.dice.choice(self.files)
            records = self.dice.choice((1, 5, 5, 0))
            if self.version >= 3:
                kind = self.dice.choice(("vector", "vector", "equality"))
            else:
                kind = self.dice.choice(("position", "position", "equality"))
            ids, stats, named = "", "", ""
            if kind == "vector":
                if target in self.vectors:
                    continue
                self.vectors.add(target)
                named = target
            elif kind == "position":
                bounds = [target.encode().hex(), self.dice.choice(self.files)[0].encode().hex()]
                way = self.dice.randint(0, 3)
                if way == 0:
                    named = target
                elif way < 3:
                    upper = bounds[0] if way == 1 else max(bounds)
                    lower = bounds[0] if way == 1 else min(bounds)
                    stats = f"2147483546:{records}:0:-:x{lower}:x{upper}"
            else:
                chosen = self.dice.sample(self.columns, self.dice.randint(1, min(2, len(self.columns))))
                chosen = [each for each in chosen if each.kind not in FLOATS] or [
                    next((each for each in self.columns if each.kind not in FLOATS), self.columns[0])
                ]
                ids = " ".join(str(each.id) for each in chosen)
                stats = self._stats(records, chosen)
                if self.dice.random() < 0.3:
                    spec = self.table.spec().specId()
                    words = self._words(spec)
            delta.addDeletes(
                self.planner.call("deleteFile", self.table, spec, path, kind, named, ids, Long(records), words, stats)
            )
        delta.commit()

    def _evolve_spec(self) -> None:
        jvm = self.planner.jvm
        update = self.table.updateSpec()
        column = self.dice.choice(self.columns)
        transform = next((each for each in self._transforms(column.kind) if each != "void"), None)
        terms = jvm.org.apache.iceberg.expressions.Expressions
        names = [each.name() for each in self.table.spec().fields()]
        if names and self.dice.random() < 0.4:
            update.removeField(self.dice.choice(names)).commit()
            return
        if transform is None:
            return
        plain, _, argument = transform.partition("[")
        if plain == "identity":
            term = terms.ref(column.name)
        elif argument:
            term = getattr(terms, plain)(column.name, int(argument.rstrip("]")))
        else:
            term = getattr(terms, plain)(column.name)
        self.count += 1
        try:
            update.addField(f"q{self.count}", term).commit()
        except Exception as error:
            # Iceberg refuses a transform that the spec has already.
            if "Cannot add" not in str(error):
                raise

    def _evolve_schema(self) -> None:
        jvm, update = self.planner.jvm, self.table.updateSchema()
        promoted = [each for each in self.columns if each.kind in PROMOTED]
        kinds = jvm.org.apache.iceberg.types.Types
        if promoted and self.dice.random() < 0.6:
            column = self.dice.choice(promoted)
            target = {
                "long": lambda: kinds.LongType.get(),
                "double": lambda: kinds.DoubleType.get(),
                "decimal(20, 2)": lambda: kinds.DecimalType.of(20, 2),
            }[PROMOTED[column.kind]]()
            update.updateColumn(column.name, target).commit()
            column.kind = PROMOTED[column.kind]
        elif self.dice.random() < 0.3 and len(self.columns) > 2:
            used = {each.sourceId() for each in self.table.spec().fields()}
            column = self.dice.choice([each for each in self.columns if each.id not in used] or self.columns[:1])
            if column.id not in used:
                update.deleteColumn(column.name).commit()
                self.columns.remove(column)
        elif self.dice.random() < 0.4:
            column = self.dice.choice(self.columns)
            self.count += 1
            update.renameColumn(column.name, f"r{self.count}").commit()
            column.name = f"{column.parent}.r{self.count}" if column.parent else f"r{self.count}"
        elif self.dice.random() < 0.2:
            self._rename_struct(update)
        else:
            self._add_column(update)

    def _rename_struct(self, update: Any) -> None:
        old = self.dice.choice(list(self.structs))
        self.count += 1
        new = ".".join([*old.split(".")[:-1], f"s{self.count}"])
        update.renameColumn(old, new.rpartition(".")[2]).commit()

        def moved(path: str) -> str:
            return new + path.removeprefix(old) if f"{path}.".startswith(f"{old}.") else path

        self.structs = {moved(path): required for path, required in self.structs.items()}
        for column in self.columns:
            column.parent, column.name = moved(column.parent), moved(column.name)

    def _add_column(self, update: Any) -> None:
        self.count += 1
        name, parent = f"n{self.count}", self.dice.choice(("", "", *self.structs))
        kind = self.planner.jvm.org.apache.iceberg.types.Types.LongType.get()
        required = False
        if self.version >= 3 and self.dice.random() < 0.6:
            default = self.planner.jvm.org.apache.iceberg.expressions.Expressions.lit(self.dice.choice(_INTS))
            required = self.dice.random() < 0.5
            add = update.addRequiredColumn if required else update.addColumn
            add(parent or None, name, kind, "", default).commit()
        else:
            update.addColumn(parent or None, name, kind).commit()
        self.table.refresh()
        path = f"{parent}.{name}" if parent else name
        whole = required and self.structs.get(parent, True)
        self.columns.append(Column(self.table.schema().findField(path).fieldId(), path, "long", whole, parent))

    def _words(self, spec: int) -> str:
        """Source values for the fields of a spec; a tilde is null."""
        by_id = {each.id: each for each in self.columns}
        words = []
        for each in self.table.specs().get(spec).fields():
            column = by_id.get(each.sourceId())
            if column is None or self.dice.random() < 0.2:
                words.append("~")
            elif column.kind in FLOATS and self.dice.random() < 0.2:
                words.append(hexed(column.kind, math.nan))
            else:
                words.append(hexed(column.kind, value_of(self.dice, column.kind)) or "~")
        return " ".join(words)

    def _stats(self, records: int, columns: list[Column]) -> str:
        dice = self.dice
        if dice.random() < 0.1:
            return ""  # metrics mode none
        counts_only = dice.random() < 0.15
        words = []
        for column in columns:
            if dice.random() < 0.1:
                continue
            nulls = 0 if column.required else dice.choice((0, 0, 1, records, records // 2))
            nans: Any = "-"
            if column.kind in FLOATS and dice.random() < 0.8:
                nans = dice.choice((0, 0, 1, records, max(records - nulls, 0)))
            shown = [dice.choice((str(records),) * 9 + ("-",)), dice.choice((str(nulls),) * 9 + ("-",)), str(nans)]
            lower = upper = "-"
            if not counts_only and nulls != records:
                first, second = (value_of(dice, column.kind) for _ in range(2))
                if dice.random() < 0.3:
                    second = first
                first, second = sorted((first, second), key=lambda each: order(column.kind, each))
                lower, upper = "x" + hexed(column.kind, first), "x" + hexed(column.kind, second)
                if column.kind in FLOATS and dice.random() < 0.15:
                    lower = upper = "x" + hexed(column.kind, math.nan)
                if dice.random() < 0.08:
                    lower = "-"
                if dice.random() < 0.08:
                    upper = "-"
            words.append(":".join((str(column.id), *shown, lower, upper)))
        return " ".join(words)


def columns_of(planner: IcebergPlanner, schema: Any) -> list[Column]:
    """Return what predicates may name in a schema of Iceberg's: leaves, and structs, lists and maps as a whole."""
    fields = planner.jvm.org.apache.iceberg.types.TypeUtil.indexById(schema.asStruct())
    found = []
    for number in sorted(fields.keySet()):
        if schema.accessorForField(number) is not None:
            kind = str(fields[number].type())
            found.append(Column(number, schema.findColumnName(number), kind.partition("<")[0]))
    return found


@dataclass(frozen=True)
class Case:
    """A predicate in both worlds: words for Iceberg, an expression for pyiceberg."""

    java: str
    python: BooleanExpression


_UNARY = {"IS_NULL": ex.IsNull, "NOT_NULL": ex.NotNull, "IS_NAN": ex.IsNaN, "NOT_NAN": ex.NotNaN}
_LITERAL = {
    "LT": ex.LessThan,
    "LT_EQ": ex.LessThanOrEqual,
    "GT": ex.GreaterThan,
    "GT_EQ": ex.GreaterThanOrEqual,
    "EQ": ex.EqualTo,
    "NOT_EQ": ex.NotEqualTo,
}
_TEXT = {"STARTS_WITH": ex.StartsWith, "NOT_STARTS_WITH": ex.NotStartsWith}


def predicate(dice: random.Random, columns: list[Column], depth: int = 0) -> Case:
    if depth < 3 and dice.random() < 0.45:
        word = dice.choice(("and", "or", "not"))
        if word == "not":
            inner = predicate(dice, columns, depth + 1)
            return Case(f"not {inner.java}", ex.Not(inner.python))
        left, right = predicate(dice, columns, depth + 1), predicate(dice, columns, depth + 1)
        kind = ex.And if word == "and" else ex.Or
        return Case(f"{word} {left.java} {right.java}", kind(left.python, right.python))
    if dice.random() < 0.03:
        return dice.choice((Case("TRUE", ex.AlwaysTrue()), Case("FALSE", ex.AlwaysFalse())))
    column = dice.choice(columns)
    way = dice.random()
    if way < 0.2 or column.kind in NANOSECONDS + CONTAINERS:
        op = dice.choice(("IS_NULL", "NOT_NULL", *(("IS_NAN", "NOT_NAN") if column.kind in FLOATS else ())))
        return Case(f"{op} {column.name} 0", _UNARY[op](column.name))
    if way < 0.4:
        count = dice.choice((2, 3, 3, 5, 210)) if column.kind in ("int", "long") else dice.choice((2, 3))
        values: list[Any] = [value_of(dice, column.kind) for _ in range(min(count, 5))]
        if column.kind in FLOATS:
            # Python's sets, and so pyiceberg's, have one zero.
            values = [0.0 if each == 0 else each for each in values]
        values += list(range(1000, 1000 + count - len(values)))
        op = dice.choice(("IN", "NOT_IN"))
        words = " ".join(literal_word(column.kind, each) for each in values)
        made = (ex.In if op == "IN" else ex.NotIn)(column.name, {_literal(column.kind, each) for each in values})
        return Case(f"{op} {column.name} {len(values)} {words}", made)
    value = value_of(dice, column.kind)
    ops = {**_LITERAL, **(_TEXT if column.kind == "string" and dice.random() < 0.6 else {})}
    op = dice.choice(list(ops))
    if op in _TEXT and value == "":
        value = "a"
    return Case(
        f"{op} {column.name} 1 {literal_word(column.kind, value)}", ops[op](column.name, _literal(column.kind, value))
    )


def literal_word(kind: str, value: Any) -> str:
    """A literal for Iceberg; fractions are doubles, as in Python."""
    return "x" + hexed("double" if kind == "float" else kind, value)


def _literal(kind: str, value: Any) -> Any:
    if kind == "date":
        return DateLiteral(value)
    if kind == "time":
        return TimeLiteral(value)
    if kind.startswith("timestamp"):
        return TimestampLiteral(value)
    return DecimalLiteral(value) if isinstance(iceberg_type(kind), DecimalType) else value
