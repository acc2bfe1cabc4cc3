"""What every asset of the walk is declared with."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dagster import AssetExecutionContext, AssetKey, Config, MaterializeResult
from pydantic import Field

from artemis_lifecycle.defs.failures import RETRIES
from artemis_lifecycle.defs.partitions import table_of, tables
from artemis_lifecycle.defs.resources import LifecycleResource
from artemis_lifecycle.deletion.report import DeletionReport
from artemis_lifecycle.errors import Refused
from artemis_lifecycle.escaping import terminal
from artemis_lifecycle.lifecycle import Lifecycle

if TYPE_CHECKING:
    Materialized = MaterializeResult[None]
else:
    # Dagster looks for the bare class in an asset's annotation; with a parameter it would store a value.
    Materialized = MaterializeResult

OWNERS = ["team:artemis-data-platform"]


class Changes(Config):
    """The configuration of a step that changes a table or deletes."""

    dry_run: bool = Field(default=True, description="Report what would be done, and change nothing.")


def delete_each(
    context: AssetExecutionContext, ids: Sequence[str], delete: Callable[[str], DeletionReport]
) -> tuple[list[DeletionReport], list[tuple[str, str]]]:
    """Delete each plan or scan; returns the reports, and (id, why) of those that a guard refused.

    A refused one does not hold the others back. Raises the first refusal if nothing else was deleted.
    """
    reports, refused = list[DeletionReport](), list[tuple[str, Refused]]()
    for each in ids:
        try:
            reports.append(delete(each))
        except Refused as refusal:
            context.log.warning(terminal(f"{each}: {refusal}"))
            refused.append((each, refusal))
    if refused and not reports:
        raise refused[0][1]
    return reports, [(each, terminal(str(why))) for each, why in refused]


def declared(group: str, kinds: set[str], deps: tuple[str, ...] = (), version: str = "1") -> dict[str, Any]:
    """The arguments of `@asset` that follow from an asset's place in the walk."""
    return {
        "group_name": group,
        "kinds": kinds,
        "deps": [AssetKey(name) for name in deps],
        "partitions_def": tables,
        "owners": OWNERS,
        "code_version": version,
        "retry_policy": RETRIES,
    }


def opened(context: AssetExecutionContext, resource: LifecycleResource) -> tuple[Lifecycle, str]:
    """This run's `Lifecycle`, and the table that is its partition."""
    return resource.get(), table_of(context.partition_key)
