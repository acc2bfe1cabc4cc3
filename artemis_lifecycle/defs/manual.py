"""Jobs that a person launches from the UI: decisions about plans, pauses, holds, restores and the fate of a file, and
audit questions.

Each calls the public method of the same name. The person's name is required: Dagster does not know who is at the
browser.
Snapshot ids are texts, because the launchpad rounds numbers of this size.
"""

import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime
from typing import Any, Literal, Optional

from dagster import Config, JobDefinition, MetadataValue, OpExecutionContext, job, op
from pydantic import Field

from artemis_lifecycle.cli.options import instant
from artemis_lifecycle.defs import questions, ui_metadata
from artemis_lifecycle.defs.common import Shown, waiting_op
from artemis_lifecycle.defs.pool import SPARK_POOL
from artemis_lifecycle.defs.questions import snapshot_id
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.lifecycle import Lifecycle

_TABLE = Field(description="namespace.table", min_length=1)
_WHO = Field(description="Your name. It is recorded with the decision.", min_length=1)
_WHY = Field(description="The reason. It is recorded with the decision.", min_length=1)
_JOB = Field(description="The id of a plan or of an orphan scan.", min_length=1)


class Decision(Config):
    """Who decides, and why."""

    who: str = _WHO
    why: str = _WHY


class ApproveConfig(Decision):
    """What is approved."""

    plan: str = _JOB
    what: Literal["large", "lost"] = Field(
        description="large: it may exceed max_files, max_bytes and max_share_of_table. lost: its handoff may omit "
        "snapshots whose files are gone."
    )


class PlanConfig(Decision):
    """Which plan or scan."""

    plan: str = _JOB


class PauseConfig(Decision):
    """Which table; all tables need a word of their own, so that an empty field pauses nothing."""

    table: Optional[str] = Field(default=None, description="namespace.table", min_length=1)
    all_tables: bool = Field(default=False, description="All tables of the deployment, instead of one.")


class HoldConfig(Config):
    """What is held, for whom, and until when."""

    table: str = _TABLE
    owner: str = Field(description="Who holds it, such as legal.", min_length=1)
    reason: str = Field(description="Why, such as a case number.", min_length=1)
    snapshot_ids: list[str] = Field(default_factory=list, description="Snapshots; none holds the whole table.")
    until: Optional[str] = Field(default=None, description="When it ends, such as 2027-01-31T00:00:00Z.")


class ReleaseConfig(Decision):
    """Which hold."""

    hold: str = Field(description="The id of the hold.", min_length=1)


class RestoreConfig(Decision):
    """Which snapshot, and the new branch that has its rows."""

    table: str = _TABLE
    snapshot_id: Optional[str] = Field(default=None, description="The id of the expired snapshot.")
    as_of: Optional[str] = Field(default=None, description="What was current then, in place of the id.")
    branch: str = Field(description="The name of a new branch.", min_length=1)
    ticket: Optional[str] = Field(default=None, description="Recorded in the snapshot's summary.")


class UndropConfig(Decision):
    """Which dropped table, and its name from now on."""

    table: str = Field(description="namespace.table, or its uuid.", min_length=1)
    uuid: Optional[str] = Field(default=None, description="Which one, if several tables of that name were dropped.")
    as_name: Optional[str] = Field(default=None, description="Another name for it.")
    incomplete: bool = Field(default=False, description="Also if files of its current state are missing.")


class ExplainConfig(Config):
    """Which file."""

    table: str = _TABLE
    path: str = Field(description="The location of the file, as metadata or the store spells it.", min_length=1)


class IncidentConfig(Config):
    """Which snapshot."""

    table: str = _TABLE
    snapshot_id: str = Field(description="The id of the snapshot, live or expired.")
    states: bool = Field(default=True, description="Also readers of later states of a table, which contain it.")


class Report(str):
    """Markdown that is escaped already."""


@dataclass(frozen=True)
class StoredReport:
    """An incident report: where its HTML is, and its text."""

    html: str
    report: Report


def _one_or_all(config: PauseConfig) -> str | None:
    if (config.table is None) is not config.all_tables:
        raise BadInput(
            "The table is missing" if config.table is None else "A table and all_tables exclude each other",
            untouched="all pauses",
            hint="set either table, or all_tables: true",
        )
    return config.table


def _stored(lifecycle: Lifecycle, config: IncidentConfig) -> StoredReport:
    """Write the report's HTML under operations.root, beside earlier ones."""
    found = lifecycle.incident(config.table, snapshot_id(config.snapshot_id), states=config.states)
    place = f"{lifecycle.root}/incidents/{found.snapshot_id}-{uuid.uuid4().hex[:8]}.html"
    lifecycle.live_stores.write(place, found.html.encode())
    return StoredReport(place, Report(found.markdown))


def _metadata(result: object) -> dict[str, Any]:
    """Return the fields of a record of the public API for the page of the run."""
    if isinstance(result, questions.Page):
        return result
    if isinstance(result, list | tuple):
        return {"results": ui_metadata.table(["result"], [(each,) for each in result])}
    fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else {"result": result}
    return {name: _value(value) for name, value in fields.items() if value is not None and value != ()}


def _value(value: object) -> Any:
    if isinstance(value, Report):
        return MetadataValue.md(value)
    if isinstance(value, datetime):
        return ui_metadata.instant(value)
    if isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**53):
        return value
    if isinstance(value, list | tuple):
        return ui_metadata.table(["value"], [(each,) for each in value])
    return MetadataValue.text(terminal(str(value)))


def _job(
    name: str,
    config_type: type[Config],
    call: Callable[[Lifecycle, Any], object],
    description: str,
    *,
    spark: bool = False,
) -> JobDefinition:
    def run(context: OpExecutionContext, lifecycle: LifecycleResource, config: Config) -> Shown:
        return _metadata(call(lifecycle.get(), config))

    # Dagster reads the type of the configuration from the annotation.
    run.__annotations__["config"] = config_type
    run.__name__ = name
    run.__doc__ = description
    step = op(name=f"{name}_step", pool=SPARK_POOL if spark else None)(waiting_op(run))

    @job(name=name, description=description, tags={"artemis/job": name})
    def launched() -> None:
        step()

    return launched


approve = _job(
    "approve",
    ApproveConfig,
    lambda lifecycle, config: lifecycle.approve(config.plan, who=config.who, why=config.why, what=config.what),
    "Let a plan or scan that waits for approval pass one guard. The sensor then continues with it.",
)
close = _job(
    "close",
    PlanConfig,
    lambda lifecycle, config: lifecycle.close_plan(config.plan, who=config.who, why=config.why),
    "End a plan permanently. Orphan scans take over the files of a committed one.",
)
pause = _job(
    "pause",
    PauseConfig,
    lambda lifecycle, config: lifecycle.pause(_one_or_all(config), who=config.who, why=config.why),
    "Stop all work on a table, or on all tables, on every machine, within seconds.",
)
resume = _job(
    "resume",
    PauseConfig,
    lambda lifecycle, config: lifecycle.resume(_one_or_all(config), who=config.who, why=config.why),
    "End the pause of a table, or the pause of all tables.",
)
hold = _job(
    "hold",
    HoldConfig,
    lambda lifecycle, config: lifecycle.hold(
        config.table,
        config.owner,
        config.reason,
        [snapshot_id(each) for each in config.snapshot_ids],
        instant(config.until),
    ),
    "Keep a table, or some of its snapshots, from expiration and deletion until the hold is released.",
)
release = _job(
    "release",
    ReleaseConfig,
    lambda lifecycle, config: lifecycle.release(config.hold, who=config.who, why=config.why),
    "Release a hold.",
)
restore = _job(
    "restore",
    RestoreConfig,
    lambda lifecycle, config: lifecycle.restore(
        config.table,
        None if config.snapshot_id is None else snapshot_id(config.snapshot_id),
        config.branch,
        as_of=instant(config.as_of),
        why=config.why,
        who=config.who,
        ticket=config.ticket,
    ),
    "Bring the rows of an expired snapshot back from the cold tier, on a new branch of the live table.",
    spark=True,
)
undelete = _job(
    "undelete",
    PlanConfig,
    lambda lifecycle, config: lifecycle.undelete(config.plan, who=config.who, why=config.why),
    "Move the files that a deletion moved into quarantine back to their paths.",
    spark=True,
)
undrop = _job(
    "undrop",
    UndropConfig,
    lambda lifecycle, config: lifecycle.undrop(**config.model_dump()),
    "Register a dropped table again, once every file of its current state is there.",
    spark=True,
)
explain = _job(
    "explain",
    ExplainConfig,
    lambda lifecycle, config: lifecycle.explain(config.table, config.path),
    "Say what holds a file, which plan has it, what deleted it, or that it is an orphan.",
    spark=True,
)
incident = _job(
    "incident",
    IncidentConfig,
    _stored,
    "Write a report about a snapshot, to attach to a ticket: who wrote it, its blast radius, inputs and overwrites.",
)
ingested = _job(
    "ingested",
    questions.IngestedConfig,
    questions.ingested,
    "Show when a partition or a data file was ingested, by which writer at which commit hash; also expired history.",
)
downstream = _job(
    "downstream",
    questions.DownstreamConfig,
    questions.downstream,
    "Show and draw every snapshot that read this one, in any table, directly or through others: its blast radius.",
)
upstream = _job(
    "upstream",
    questions.UpstreamConfig,
    questions.upstream,
    "Show and draw every snapshot that this one read, in any table, directly or through others.",
)

DECISIONS = (approve, close, pause, resume, hold, release, restore, undelete, undrop, explain)
QUESTIONS = (ingested, downstream, upstream, incident)
ALL = (*DECISIONS, *QUESTIONS)
