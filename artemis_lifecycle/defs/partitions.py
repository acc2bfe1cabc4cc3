"""The one partition: a table of the live catalog, by its identifier (`namespace.table`)."""

from urllib.parse import quote, unquote

from dagster import DagsterInstance, DynamicPartitionsDefinition

from artemis_lifecycle.escaping import terminal

PARTITIONS_NAME = "table"

tables = DynamicPartitionsDefinition(name=PARTITIONS_NAME)
"""Fed by the sensor `discovery`. The partition of a dropped table stays, and its history with it."""

_ENCODED = "encoded:"
# Dagster takes no key with three dots in a row: a range in its UI.
_RANGE = "..."


def partition_key(table: str) -> str:
    """The key of a table's partition: its identifier, and percent-encoded where Dagster would refuse that, or a name
    would reorder or hide what stands around it in the UI and in logs."""
    if _RANGE not in table and terminal(table) == table and not table.startswith(_ENCODED):
        return table
    escaped = table.replace("%", "%25").replace(_RANGE, "%2E%2E%2E")
    return _ENCODED + "".join(
        each if terminal(each) == each else quote(each, errors="surrogatepass") for each in escaped
    )


def table_of(key: str) -> str:
    """The table whose partition has that key."""
    return unquote(key.removeprefix(_ENCODED), errors="surrogatepass") if key.startswith(_ENCODED) else key


def partitioned_tables(instance: DagsterInstance) -> set[str]:
    """The tables that are partitions of the instance."""
    return set(map(table_of, instance.get_dynamic_partitions(PARTITIONS_NAME)))
