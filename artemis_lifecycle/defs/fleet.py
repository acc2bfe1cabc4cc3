"""The asset that shows all tables at a glance. It is not partitioned: one process computes it, from Postgres alone."""

from dagster import MaterializeResult, asset

from artemis_lifecycle.defs import ui_metadata
from artemis_lifecycle.defs.common import OWNERS
from artemis_lifecycle.defs.failures import RETRIES, as_dagster_failure
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.defs.tags import ASSET_TAG
from artemis_lifecycle.escaping import terminal

PAGE = "fleet/index.html"
_ROWS = 200


@asset(group_name="fleet", kinds={"postgres"}, owners=OWNERS, tags={ASSET_TAG: "fleet"}, retry_policy=RETRIES)
def fleet(lifecycle: LifecycleResource) -> MaterializeResult:  # type: ignore[type-arg]
    """Every governed table: overdue, its health's score, waiting for a person, held, paused, red checks, bytes freed
    and freeable, orphan share, cost per month, the age of each step. Written as a page to
    `<operations.root>/fleet/index.html`. Starts no Spark."""
    with as_dagster_failure() as watch:
        opened = lifecycle.get()
        found = opened.fleet()
        place = f"{opened.root}/{PAGE}"
        opened.live_stores.write(place, found.html.encode(), overwrite=True)
    needs = sorted(
        found.tables, key=lambda each: (not (each.waits_for or each.red_checks), not each.overdue, each.table)
    )
    return MaterializeResult(
        metadata={
            **found.summary,
            "page": ui_metadata.place(place),
            "cost": terminal(found.cost),
            **({} if found.cost_per_month is None else {"cost_per_month": found.cost_per_month}),
            "windows": ui_metadata.table(["forecast"], [(str(window),) for window in found.windows]),
            "dagster/row_count": len(found.tables),
            "first_tables": ui_metadata.table(
                [
                    "table",
                    "overdue",
                    "health",
                    "waits for",
                    "red",
                    "under way",
                    "freed bytes",
                    "freeable bytes",
                    "planned",
                ],
                [
                    (
                        each.table,
                        each.overdue,
                        each.health_score,
                        "; ".join(each.waits_for),
                        "; ".join(each.red_checks),
                        each.plan_status,
                        each.freed_bytes,
                        each.freeable_bytes,
                        each.planned_at,
                    )
                    for each in needs[:_ROWS]
                ],
            ),
            "seconds": watch.seconds,
        }
    )
