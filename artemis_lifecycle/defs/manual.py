"""Jobs that a person launches from the UI: decisions about plans, pauses, holds, restores and the fate of a file, and
audit questions with their answers as tables and drawn graphs.

Each calls the public method of the same name with the fields of its configuration. The person's name is required:
Dagster does not know who is at the browser. Snapshot ids are texts, because the launchpad rounds numbers of this size.
"""

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from typing import Any, Literal, Optional, get_args, get_origin

import dagster as dg
from pydantic import Field, create_model

from artemis_lifecycle.api import Lifecycle
from artemis_lifecycle.audit.answers import Lineage
from artemis_lifecycle.cli.command import instant, instant_ahead
from artemis_lifecycle.cli.output import grid
from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import Shown, waiting_op
from artemis_lifecycle.defs.processes import SPARK_POOL
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.operations.plans import Approval
from artemis_lifecycle.pipes import snapshot_id


def _text_field(description: str) -> Any:
    return str, Field(description=description, min_length=1)


def _optional(description: str, **limits: Any) -> Any:
    return Optional[str], Field(default=None, description=description, **limits)


def _switch(description: str, *, default: bool = False) -> Any:
    return bool, Field(default=default, description=description)


_TABLE = {"table": _text_field("namespace.table")}
_DECISION = {
    "who": _text_field("Your name. It is recorded with the decision."),
    "why": _text_field("The reason. It is recorded with the decision."),
}
_PLAN = {"plan": _text_field("The id of a plan or of an orphan scan."), **_DECISION}
# All tables need a word of their own, so that an empty field pauses nothing.
_PAUSE = {
    "table": _optional("namespace.table", min_length=1),
    "all_tables": _switch("All tables of the deployment, instead of one."),
    **_DECISION,
}
_SNAPSHOT = {**_TABLE, "snapshot_id": (str, Field(description="The id of the snapshot, live or expired."))}
_LATER = _switch("Also readers of later states of a table, which contain it.", default=True)


_MAY: dict[Approval, str] = {
    "large": "may exceed max_files, max_bytes and max_share_of_table",
    "lost": "may leave out of its handoff snapshots whose files are gone",
}


_PARSED: dict[str, Callable[[Any], object]] = {
    "snapshot_id": snapshot_id,
    "snapshot_ids": lambda texts: [snapshot_id(each) for each in texts],
    "as_of": instant,
    "until": instant_ahead,
}
"""How the launchpad's texts become arguments, by the name of the field."""


class Page(dict[str, Any]):
    """Values of Dagster's own types, by name."""


class Report(str):
    """Markdown that is escaped already."""


@dataclass(frozen=True)
class StoredReport:
    """An incident report: where its HTML is, and its text."""

    html: str
    report: Report


def _one_or_all(table: str | None, all_tables: bool) -> str | None:
    if (table is None) is not all_tables:
        raise BadInput(
            "The table is missing" if table is None else "A table and all_tables exclude each other",
            untouched="all pauses",
            hint="set either table, or all_tables: true",
        )
    return table


def _stored(lifecycle: Lifecycle, **asked: Any) -> StoredReport:
    """Write the report's HTML under operations.root, beside earlier ones."""
    found = lifecycle.incident(**asked)
    place = f"{lifecycle.root}/incidents/{found.snapshot_id}-{uuid.uuid4().hex[:8]}.html"
    lifecycle.live_stores.write(place, found.html.encode())
    return StoredReport(place, Report(found.markdown))


def _ingested(lifecycle: Lifecycle, **asked: Any) -> Page:
    """When rows were ingested, by which writer at which commit hash, and in which files."""
    found = lifecycle.ingested(**asked)
    facts = (found.snapshot_id, found.writer_id, found.commit_hash)
    rows = found.rows()
    return Page(
        {
            **{
                name: _text(value)
                for name, value in zip(("snapshot_id", "writer_id", "commit_hash"), facts, strict=True)
            },
            "committed_at": ui_metadata.instant(found.committed_at),
            "files": len(rows),
            "data_files": ui_metadata.table(
                *grid(
                    rows,
                    "committed=committed_at, snapshot=snapshot_id, operation, writer=writer_id, commit=commit_hash, "
                    "partition, tier, path",
                )
            ),
            "compactions_without_inputs": len(found.untraced),
            "snapshots_not_recorded_yet": found.unrecorded,
        }
    )


def _lineage(found: Lineage) -> Page:
    what = f"{found.direction} of {found.table} {found.snapshot_id}"
    return Page(
        {
            "snapshots": len(found.snapshots),
            "tables": len({each.table for each in found.snapshots}),
            "depth": found.depth,
            "left_out": found.left_out,
            "graph": ui_metadata.drawing(found.svg(), f"Snapshots {what}"),
            "edges": ui_metadata.table(
                *grid(
                    found.edges,
                    "depth, read=source.table, snapshot read=source.snapshot_id, by=target.table, "
                    "by snapshot=target.snapshot_id",
                )
            ),
            "snapshots_not_recorded_yet": found.unrecorded,
            "unreadable_tables": ui_metadata.table(["table"], [(each,) for each in found.unreadable]),
        }
    )


def _text(value: object) -> dg.MetadataValue:
    return dg.MetadataValue.text("none" if value is None else terminal(str(value)))


def _metadata(result: object) -> dict[str, Any]:
    """Return the fields of a record of the public API for the page of the run."""
    if isinstance(result, Page):
        return result
    if isinstance(result, list | tuple):
        return {"results": ui_metadata.table(["result"], [(each,) for each in result])}
    fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else {"result": result}
    return {name: _value(value) for name, value in fields.items() if value is not None and value != ()}


def _value(value: object) -> Any:
    if isinstance(value, Report):
        return dg.MetadataValue.md(value)
    if isinstance(value, datetime):
        return ui_metadata.instant(value)
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, list | tuple):
        return ui_metadata.table(["value"], [(each,) for each in value])
    return dg.MetadataValue.text(terminal(str(value)))


def _job(
    name: str,
    fields: dict[str, Any],
    description: str,
    call: Callable[..., object] | None = None,
    *,
    spark: bool = False,
) -> dg.JobDefinition:
    """Return the job of a verb: `call`, or the public method of its name, with the fields as arguments."""
    config_type = create_model(f"{name.capitalize()}Config", __base__=dg.Config, **fields)
    verb = call or getattr(Lifecycle, name)
    filled = {key: _filled(kind, field) for key, (kind, field) in fields.items()}

    def run(context: dg.OpExecutionContext, lifecycle: LifecycleResource, config: dg.Config) -> Shown:
        given = {key: getattr(config, key) for key in fields}
        if left := [key for key, it in given.items() if it == filled[key] and str(it).startswith("<")]:
            raise BadInput(f"Still placeholders: {', '.join(left)}", untouched="everything", hint="replace each <…>")
        known = {key: _PARSED[key](it) if key in _PARSED and it is not None else it for key, it in given.items()}
        return _metadata(verb(lifecycle.get(), **known))

    # Dagster reads the type of the configuration from the annotation.
    run.__annotations__["config"] = config_type
    run.__name__ = name
    run.__doc__ = description
    step = dg.op(name=f"{name}_step", pool=SPARK_POOL if spark else None)(waiting_op(run))

    # The launchpad opens with it.
    opens_with = {"ops": {f"{name}_step": {"config": filled}}}

    @dg.job(name=name, description=description, tags={"artemis/job": name}, config=opens_with)
    def launched() -> None:
        step()

    return launched


def _filled(kind: Any, field: Any) -> object:
    """Return what the launchpad shows for a field: its default, else its first choice, else a placeholder."""
    if not field.is_required():
        return field.get_default(call_default_factory=True)
    return get_args(kind)[0] if get_origin(kind) is Literal else f"<{field.description.rstrip('.').split('. ')[0]}>"


def _approved(lifecycle: Lifecycle, plan: str, what: Approval, who: str, why: str) -> str:
    table = lifecycle.approve(plan, what=what, who=who, why=why, early=False).table
    return f"{who} approved {plan} of {table} ({what}: {_MAY[what]}); the sensor maintenance_window continues with it."


DECISIONS = (
    _job(
        "approve",
        {
            **_PLAN,
            "what": (Approval, Field(description=". ".join(f"{what}: it {may}" for what, may in _MAY.items()) + ".")),
        },
        "Let a plan or scan that waits for approval pass one guard. The sensor then continues with it.",
        _approved,
    ),
    _job(
        "close",
        _PLAN,
        "End a plan permanently. Orphan scans take over the files of a committed one.",
        Lifecycle.close_plan,
    ),
    _job(
        "pause",
        _PAUSE,
        "Stop all work on a table, or on all tables, on every machine, within seconds.",
        lambda lifecycle, table, all_tables, **why: lifecycle.pause(_one_or_all(table, all_tables), **why),
    ),
    _job(
        "resume",
        _PAUSE,
        "End the pause of a table, or the pause of all tables.",
        lambda lifecycle, table, all_tables, **why: lifecycle.resume(_one_or_all(table, all_tables), **why),
    ),
    _job(
        "hold",
        {
            **_TABLE,
            "owner": _text_field("Who holds it, such as legal."),
            "reason": _text_field("Why, such as a case number."),
            "snapshot_ids": (
                list[str],
                Field(default_factory=list, description="Snapshots; none holds the whole table."),
            ),
            "until": _optional("When it ends, such as 2027-01-31T00:00:00Z."),
        },
        "Keep a table, or some of its snapshots, from expiration and deletion until the hold is released.",
    ),
    _job(
        "release",
        {"hold": _text_field("The id of the hold."), **_DECISION},
        "Release a hold.",
        lambda lifecycle, hold, **why: lifecycle.release(hold, **why),
    ),
    _job(
        "restore",
        {
            **_TABLE,
            "snapshot_id": _optional("The id of the expired snapshot."),
            "as_of": _optional("What was current then, in place of the id."),
            "branch": _text_field("The name of a new branch."),
            "ticket": _optional("Recorded in the snapshot's summary."),
            **_DECISION,
        },
        "Bring the rows of an expired snapshot back from the cold tier, on a new branch of the live table.",
        spark=True,
    ),
    _job(
        "undelete",
        _PLAN,
        "Move the files that a deletion moved into quarantine back to their paths.",
        lambda lifecycle, plan, **why: lifecycle.undelete(plan, **why),
        spark=True,
    ),
    _job(
        "undrop",
        {
            "table": _text_field("namespace.table, or its uuid."),
            "uuid": _optional("Which one, if several tables of that name were dropped."),
            "as_name": _optional("Another name for it."),
            "incomplete": _switch("Also if files of its current state are missing."),
            **_DECISION,
        },
        "Register a dropped table again, once every file of its current state is there.",
        spark=True,
    ),
    _job(
        "explain",
        {**_TABLE, "path": _text_field("The location of the file, as metadata or the store spells it.")},
        "Say what holds a file, which plan has it, what deleted it, or that it is an orphan.",
        spark=True,
    ),
)
QUESTIONS = (
    _job(
        "ingested",
        {
            **_TABLE,
            "partition": _optional("Such as day=2024-03-15/region=eu.", min_length=1),
            "path": _optional("A data file's path, live or cold.", min_length=1),
        },
        "Show when a partition or a data file was ingested, by which writer at which commit hash; also expired "
        "history.",
        _ingested,
    ),
    _job(
        "downstream",
        {**_SNAPSHOT, "states": _LATER},
        "Show and draw every snapshot that read this one, in any table, directly or through others: its blast radius.",
        lambda lifecycle, **asked: _lineage(lifecycle.downstream(**asked)),
    ),
    _job(
        "upstream",
        {**_SNAPSHOT, "states": _switch("Also inputs of earlier states of a table, which it contains.")},
        "Show and draw every snapshot that this one read, in any table, directly or through others.",
        lambda lifecycle, **asked: _lineage(lifecycle.upstream(**asked)),
    ),
    _job(
        "incident",
        {**_SNAPSHOT, "states": _LATER},
        "Write a report about a snapshot, to attach to a ticket: who wrote it, its blast radius, inputs and "
        "overwrites.",
        _stored,
    ),
)
ALL = (*DECISIONS, *QUESTIONS)
