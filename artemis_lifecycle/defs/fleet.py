"""The asset that shows all tables at a glance. It is not partitioned: one process computes it from Postgres."""

from dagster import AssetExecutionContext, MaterializeResult, asset

from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import OWNERS
from artemis_lifecycle.defs.failures import RETRIES, as_dagster_failure
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import ASSET_TAG

PAGE = "fleet/index.html"
_ROWS = 200


@asset(group_name="fleet", kinds={"postgres"}, owners=OWNERS, tags={ASSET_TAG: "fleet"}, retry_policy=RETRIES)
def fleet(context: AssetExecutionContext, lifecycle: LifecycleResource) -> MaterializeResult:  # type: ignore[type-arg]
    """Every governed table: overdue, waiting for a person, held, paused, red checks, bytes freed and freeable, orphan
    share, the age of each step. Written as a page to `<operations.root>/fleet/index.html`. Starts no Spark."""
    with as_dagster_failure() as watch:
        opened = lifecycle.get()
        found = opened.fleet()
        place = f"{opened.root}/{PAGE}"
        opened.live_stores.write(place, found.html.encode(), overwrite=True)
    first = sorted(found.tables, key=lambda each: (not each.waits_for, not each.overdue, each.table))[:_ROWS]
    return MaterializeResult(
        metadata={
            **found.summary,
            "page": ui_metadata.place(place),
            "windows": ui_metadata.table(["forecast"], [(str(window),) for window in found.windows]),
            "dagster/row_count": len(found.tables),
            "first_tables": ui_metadata.table(
                ["table", "overdue", "waits for", "under way", "freed bytes", "freeable bytes", "planned"],
                [
                    (
                        each.table,
                        each.overdue,
                        "; ".join(each.waits_for),
                        each.plan_status,
                        each.freed_bytes,
                        each.freeable_bytes,
                        each.planned_at,
                    )
                    for each in first
                ],
            ),
            "seconds": watch.seconds,
        }
    )
