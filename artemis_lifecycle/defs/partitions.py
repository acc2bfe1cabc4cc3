"""The one partition: a table of the live catalog, by its identifier (`namespace.table`)."""

from dagster import DynamicPartitionsDefinition

PARTITIONS_NAME = "table"

tables = DynamicPartitionsDefinition(name=PARTITIONS_NAME)
"""Fed by the sensor `discovery`. The partition of a dropped table stays, and its history with it."""
