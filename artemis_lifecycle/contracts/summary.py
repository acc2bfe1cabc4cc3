"""The lineage keys of a snapshot's summary, their encodings, and the typed form of one commit's lineage.

The spec leaves the keys of `snapshot.summary` to the writer, except `operation`, which is one of append, replace,
overwrite and delete (Iceberg spec, "Snapshots"). A compaction is a `replace`. An expiration, a tag and a branch commit
no snapshot and so have no summary: their lineage is the table property `COMMIT_PROPERTY` of the metadata file that they
write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal, NamedTuple, Self, get_args

from artemis_lifecycle.errors import BadInput

Operation = Literal["append", "replace", "overwrite", "delete"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)

OPERATION = "operation"
WRITER_ID = "writer.id"
WRITER_HOST = "writer.host"
COMMIT_HASH = "writer.commit_hash"
INVOCATION_ID = "writer.invocation_id"
INPUT_SNAPSHOTS = "input.snapshot_ids"
INPUT_ROWS = "input.row_count"
INPUT_BYTES = "input.bytes_compressed"
TRIGGER = "trigger.type"
OPERATOR = "trigger.operator"
TICKET = "trigger.ticket"
DAGSTER_RUN = "dagster.run_id"
CODE_VERSION = "dagster.code_version"

KEYS = (
    WRITER_ID,
    WRITER_HOST,
    COMMIT_HASH,
    INVOCATION_ID,
    INPUT_SNAPSHOTS,
    INPUT_ROWS,
    INPUT_BYTES,
    TRIGGER,
    OPERATOR,
    TICKET,
)
"""The keys that a writer sets; `operation` is Iceberg's to set. A commit of a Dagster run also has `DAGSTER_RUN` and
`CODE_VERSION`, which nothing requires."""

COMMIT_PROPERTY = "lineage.commit"
"""The table property with the lineage of a commit that adds no snapshot: a JSON object of the keys, `operation` (such
as `expiration`) and `base`, the metadata file that the commit replaced. It describes only the metadata file whose
previous one is `base`; a later commit inherits the property, and its text then names another base."""

LONGEST = 1024
"""Characters of one value."""
LONGEST_INPUTS = 65_536
"""Characters of `input.snapshot_ids`."""


def _up_to(most: int) -> str:
    """Return a pattern of the decimal numbers from 0 to `most`, without a regular expression's bounds on values."""
    digits = str(most)
    shorter = [f"[0-9]{{1,{len(digits) - 1}}}"]
    lower = [
        f"{digits[:place]}[0-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits[:-1])
        if digit != "0"
    ]
    return f"(?:{'|'.join([*shorter, *lower, digits[:-1] + f'[0-{digits[-1]}]'])})"


_COUNT = _up_to(2**63 - 1)
_SPACE = "[ ]*"
_ELEMENT = f'(?:{_COUNT}|"{_COUNT}")'


def _listed(element: str) -> str:
    return f"{element}(?:{_SPACE},{_SPACE}{element})*"


_LIST = rf"\[{_SPACE}(?:{_listed(_ELEMENT)})?{_SPACE}\]"
_ENTRY = rf'"[^"\\]+"{_SPACE}:{_SPACE}{_LIST}'
_OBJECT = rf"\{{{_SPACE}{_listed(f'(?:{_ENTRY})')}{_SPACE}\}}"

PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        COMMIT_HASH: "[0-9a-fA-F]{7,64}",
        INPUT_ROWS: _COUNT,
        INPUT_BYTES: _COUNT,
        INPUT_SNAPSHOTS: f"(?:{_listed(_COUNT)}|{_LIST}|{_OBJECT})",
    }
)
"""What the value of a key looks like, where that does not depend on the table. Each matches the whole value, and means
the same to Python and to Postgres."""

_COMPILED = {key: re.compile(pattern) for key, pattern in PATTERNS.items()}


class InputSnapshot(NamedTuple):
    """A snapshot that a commit read. `table` None: of the table that was committed to; `catalog` None: of its
    catalog."""

    snapshot_id: int
    table: str | None = None
    catalog: str | None = None


def parse_inputs(text: str) -> tuple[InputSnapshot, ...]:
    """Return the snapshots that `input.snapshot_ids` names.

    Ids of the table itself are a JSON list, or numbers with commas between: `[4727, 4728]`, `4727,4728`. For other
    tables it is a JSON object from table to ids: `{"telemetry.passes": [4727], "other_catalog:ops.sites": [12]}`. A
    name is as `artemis tables` prints it, with its catalog and a colon before it if that is another one. Ids may be
    texts, for languages that would round them. Raises ValueError for anything else.
    """
    stripped = text.strip(" ")
    if not stripped:
        return ()
    if not _COMPILED[INPUT_SNAPSHOTS].fullmatch(stripped):
        raise ValueError(f"{text[:80]!r} is neither a list of snapshot ids nor an object from tables to lists")
    if stripped[0] not in "[{":
        return tuple(InputSnapshot(int(part)) for part in stripped.split(","))
    parsed = json.loads(stripped)
    if isinstance(parsed, list):
        return tuple(InputSnapshot(int(each)) for each in parsed)
    found = []
    for name, ids in parsed.items():
        catalog, colon, table = name.partition(":")
        if not colon or "`" in catalog:
            catalog, table = "", name
        found += [InputSnapshot(int(each), table, catalog or None) for each in ids]
    return tuple(found)


def format_inputs(inputs: Sequence[InputSnapshot]) -> str:
    """Return the text for `input.snapshot_ids`: a list if every snapshot is of the committed table, else an object."""
    if all(each.table is None for each in inputs):
        return json.dumps([each.snapshot_id for each in inputs])
    if any(each.table is None for each in inputs):
        raise BadInput("Inputs name a table for some snapshots and none for others", hint="name the table of each")
    by_table: dict[str, list[int]] = {}
    for each in inputs:
        name = f"{each.catalog}:{each.table}" if each.catalog else str(each.table)
        by_table.setdefault(name, []).append(each.snapshot_id)
    return json.dumps(by_table, ensure_ascii=False)


@dataclass(frozen=True)
class CommitLineage:
    """Who commits, from which inputs, and why: the lineage keys of one commit. `input_bytes` are compressed.

    `commit_hash` is the version-control commit of the writer's code; `invocation_id` differs for every run of it.
    """

    writer_id: str
    writer_host: str
    commit_hash: str
    invocation_id: str
    trigger_type: str
    input_rows: int | None = None
    input_bytes: int | None = None
    inputs: tuple[InputSnapshot, ...] | None = None
    operator: str | None = None
    ticket: str | None = None
    dagster_run_id: str | None = None
    code_version: str | None = None

    def summary(self) -> dict[str, str]:
        """Return the summary keys; those without a value are left out."""
        values: dict[str, str | None] = {
            WRITER_ID: self.writer_id,
            WRITER_HOST: self.writer_host,
            COMMIT_HASH: self.commit_hash,
            INVOCATION_ID: self.invocation_id,
            INPUT_SNAPSHOTS: None if self.inputs is None else format_inputs(self.inputs),
            INPUT_ROWS: None if self.input_rows is None else str(self.input_rows),
            INPUT_BYTES: None if self.input_bytes is None else str(self.input_bytes),
            TRIGGER: self.trigger_type,
            OPERATOR: self.operator,
            TICKET: self.ticket,
            DAGSTER_RUN: self.dagster_run_id,
            CODE_VERSION: self.code_version,
        }
        return {key: value for key, value in values.items() if value is not None}

    @classmethod
    def parse(cls, summary: Mapping[str, str]) -> Self:
        """Return the typed form of a summary. Raises BadInput, naming every key that is missing or malformed."""
        wrong = [f"{key} is missing" for key in _NEEDED if not summary.get(key, "").strip(" ")]
        wrong += value_problems(summary)
        if wrong:
            raise BadInput(
                f"Not the lineage of a commit: {'; '.join(wrong)}", hint="docs/lineage.md has the keys and their form"
            )
        given = {name: summary[key] for name, key in _FIELDS.items() if summary.get(key, "").strip(" ")}
        text = {name: value for name, value in given.items() if name not in ("inputs", "input_rows", "input_bytes")}
        return cls(
            **text,
            inputs=parse_inputs(given["inputs"]) if "inputs" in given else None,
            input_rows=int(given["input_rows"]) if "input_rows" in given else None,
            input_bytes=int(given["input_bytes"]) if "input_bytes" in given else None,
        )

    def reading(self, *inputs: InputSnapshot, rows: int, size_in_bytes: int) -> Self:
        """Return it with what the commit read."""
        return replace(self, inputs=inputs, input_rows=rows, input_bytes=size_in_bytes)


_FIELDS = {
    "writer_id": WRITER_ID,
    "writer_host": WRITER_HOST,
    "commit_hash": COMMIT_HASH,
    "invocation_id": INVOCATION_ID,
    "trigger_type": TRIGGER,
    "input_rows": INPUT_ROWS,
    "input_bytes": INPUT_BYTES,
    "inputs": INPUT_SNAPSHOTS,
    "operator": OPERATOR,
    "ticket": TICKET,
    "dagster_run_id": DAGSTER_RUN,
    "code_version": CODE_VERSION,
}
assert set(_FIELDS) == {field.name for field in fields(CommitLineage)}
_NEEDED = (WRITER_ID, WRITER_HOST, COMMIT_HASH, INVOCATION_ID, TRIGGER)

_CONTROL = re.compile("[\x00-\x1f\x7f]")


def value_problems(summary: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the values of the lineage keys, whatever the table requires: length, control
    characters, form. In the order of `KEYS`."""
    problems = []
    for key in KEYS:
        value = summary.get(key, "")
        longest = LONGEST_INPUTS if key == INPUT_SNAPSHOTS else LONGEST
        if len(value) > longest:
            problems.append(f"{key} has {len(value)} characters, more than {longest}")
        elif _CONTROL.search(value):
            problems.append(f"{key} has a control character")
        elif key in _COMPILED and value.strip(" ") and not _COMPILED[key].fullmatch(value.strip(" ")):
            problems.append(f"{key}={value[:80]} is malformed")
    return problems
