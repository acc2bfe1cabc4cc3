"""The only partition: a table of the live catalog, by its identifier (`namespace.table`)."""

import re
from urllib.parse import quote, unquote

import dagster as dg

from artemis_lifecycle.escaping import terminal

PARTITIONS_NAME = "table"

tables = dg.DynamicPartitionsDefinition(name=PARTITIONS_NAME)
"""The sensor `discovery` adds the tables of the live catalog, and retires the partition of a dropped table. Dagster
keeps the history of a retired partition."""

_ENCODED = "encoded:"
_RESERVED = re.compile(r'\.\.\.|[,\[\]"]')
"""What has a meaning in the UI's text for partitions: ranges (Dagster rejects such keys), lists and quoted keys."""


def partition_key(table: str) -> str:
    """Return the partition key of a table: its identifier, percent-encoded where Dagster would reject it or its UI
    could not select it, or where the name would reorder or hide the text around it in the UI and in logs."""
    if not _RESERVED.search(table) and terminal(table) == table and not table.startswith(_ENCODED):
        return table
    escaped = _RESERVED.sub(lambda found: "".join(f"%{ord(each):02X}" for each in found[0]), table.replace("%", "%25"))
    return _ENCODED + "".join(
        each if terminal(each) == each else quote(each, errors="surrogatepass") for each in escaped
    )


def table_of(key: str) -> str:
    """Return the table whose partition has that key."""
    return unquote(key.removeprefix(_ENCODED), errors="surrogatepass") if key.startswith(_ENCODED) else key


def partitioned_tables(instance: dg.DagsterInstance) -> set[str]:
    """Return the tables that are partitions of the instance."""
    return set(map(table_of, instance.get_dynamic_partitions(PARTITIONS_NAME)))
