"""What the retention rules need for a table: its settings, holds and tags."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from artemis_lifecycle.expiration.tags_and_holds import hold_views, tag_views
from artemis_lifecycle.lifecycle.resources import Resources
from artemis_lifecycle.retention.rules import HoldView, RetentionSettings, TagView
from artemis_lifecycle.storage.instants import milliseconds


def retention_settings(
    resources: Resources,
    table: str,
    older_than: datetime | None = None,
    retain_last: int | None = None,
    snapshot_ids: Sequence[int] | None = None,
) -> RetentionSettings:
    """Return the settings of the table's policy. Arguments of the call take precedence."""
    return RetentionSettings.of(
        resources.config.policy(table).retention,
        explicit_window=resources.config.explicit_window(table) is not None,
        older_than_ms=None if older_than is None else milliseconds(resources.instant("older_than", older_than)),
        retain_last=retain_last,
        explicit_ids=snapshot_ids or (),
    )


def holds_and_tags(resources: Resources, table_uuid: str) -> tuple[tuple[HoldView, ...], tuple[TagView, ...]]:
    """Return the active holds of a table, and its tags."""
    holds = resources.operations.holds.active(table_uuid, resources.operations.clock.now())
    return hold_views(holds), tag_views(resources.operations.tags.of_table(table_uuid))
