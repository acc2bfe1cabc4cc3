"""The one partition: a table of the live catalog, by its identifier (`namespace.table`)."""

import re
from urllib.parse import unquote

from dagster import DagsterInstance, DynamicPartitionsDefinition

PARTITIONS_NAME = "table"

tables = DynamicPartitionsDefinition(name=PARTITIONS_NAME)
"""Fed by the sensor `discovery`. The partition of a dropped table stays, and its history with it."""

_ENCODED = "encoded:"
# Dagster takes no key with three dots in a row (a range in its UI) or one of these control characters.
_FORBIDDEN = re.compile(r"\.\.\.|[\0\a\b\t\n\v\f\r]")


def partition_key(table: str) -> str:
    """The key of a table's partition: its identifier, and percent-encoded where Dagster would refuse that."""
    if _FORBIDDEN.search(table) is None and not table.startswith(_ENCODED):
        return table
    escaped = table.replace("%", "%25")
    return _ENCODED + _FORBIDDEN.sub(lambda match: "".join(f"%{ord(each):02X}" for each in match[0]), escaped)


def table_of(key: str) -> str:
    """The table whose partition has that key."""
    return unquote(key.removeprefix(_ENCODED)) if key.startswith(_ENCODED) else key


def partitioned_tables(instance: DagsterInstance) -> set[str]:
    """The tables that are partitions of the instance."""
    return set(map(table_of, instance.get_dynamic_partitions(PARTITIONS_NAME)))
