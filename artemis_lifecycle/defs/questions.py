"""The audit questions on the page of a run: when a partition was ingested, and what is downstream or upstream of a
snapshot, as a table and as a drawn graph. Belongs here: their configurations, and what the page shows. The answers are
those of the public methods of the same names."""

from typing import Any, Optional

from dagster import Config, MetadataValue
from pydantic import Field

from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.errors import BadInput
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.lifecycle import Lifecycle
from artemis_lifecycle.lineage.audit import Lineage


class Page(dict[str, Any]):
    """Values of Dagster's own types, by name."""


class IngestedConfig(Config):
    """Which partition or file; none: the table's newest ingest."""

    table: str = Field(description="namespace.table", min_length=1)
    partition: Optional[str] = Field(default=None, description="Such as day=2024-03-15/region=eu.", min_length=1)
    path: Optional[str] = Field(default=None, description="A data file's path, live or cold.", min_length=1)


class UpstreamConfig(Config):
    """Which snapshot."""

    table: str = Field(description="namespace.table", min_length=1)
    snapshot_id: str = Field(description="The id of the snapshot, live or expired.")
    states: bool = Field(default=False, description="Also inputs of earlier states of a table, which it contains.")


class DownstreamConfig(UpstreamConfig):
    """Which snapshot."""

    states: bool = Field(default=True, description="Also readers of later states of a table, which contain it.")


def snapshot_id(text: str) -> int:
    """Return a snapshot id. Raises BadInput."""
    try:
        return int(text)
    except ValueError as error:
        raise BadInput(f"{text!r} is not a snapshot id", untouched="everything", hint="use its digits") from error


def ingested(lifecycle: Lifecycle, config: IngestedConfig) -> Page:
    """When rows were ingested, by which writer at which commit hash, and in which files."""
    found = lifecycle.ingested(config.table, config.partition, config.path)
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
                ["committed", "snapshot", "operation", "writer", "commit", "partition", "tier", "path"],
                [
                    (
                        r.committed_at,
                        r.snapshot_id,
                        r.operation,
                        r.writer_id,
                        r.commit_hash,
                        r.partition,
                        r.tier,
                        r.path,
                    )
                    for r in rows
                ],
            ),
            "compactions_without_inputs": len(found.untraced),
            "snapshots_not_recorded_yet": found.unrecorded,
        }
    )


def downstream(lifecycle: Lifecycle, config: DownstreamConfig) -> Page:
    """The blast radius of a snapshot."""
    return _lineage(lifecycle.downstream(config.table, snapshot_id(config.snapshot_id), states=config.states))


def upstream(lifecycle: Lifecycle, config: UpstreamConfig) -> Page:
    """What a snapshot was made from."""
    return _lineage(lifecycle.upstream(config.table, snapshot_id(config.snapshot_id), states=config.states))


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
                ["depth", "read", "snapshot read", "by", "by snapshot"],
                [
                    (depth, source.table, source.snapshot_id, target.table, target.snapshot_id)
                    for depth, source, target in found.edges
                ],
            ),
            "snapshots_not_recorded_yet": found.unrecorded,
            "unreadable_tables": ui_metadata.table(["table"], [(each,) for each in found.unreadable]),
        }
    )


def _text(value: object) -> MetadataValue:
    return MetadataValue.text("none" if value is None else terminal(str(value)))
