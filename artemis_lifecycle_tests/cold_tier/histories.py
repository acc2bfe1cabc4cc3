"""Tables with a past, one for each format version, with what is hard about each."""

from __future__ import annotations

from artemis_lifecycle_tests.cold_tier.world import World

ODD = ("plain", "with space", "a/b", "ü–ß", "50%", "q?x=1#y", "../up", "")


def _rows(start: int, number: int, kinds: tuple[str, ...] = ODD) -> str:
    values = []
    for index in range(start, start + number):
        kind = kinds[index % len(kinds)]
        day = "NULL" if index % 5 == 0 else f"DATE '2024-0{1 + index % 3}-15'"
        values.append(f"({index}, '{kind}', {day}, 'note {index}')")
    return ", ".join(values)


def version_1(world: World, table: str = "ns.t") -> None:
    """Odd partitions, an overwrite, a schema and a partition spec that change, values that look like paths."""
    world.sql(
        f"CREATE TABLE {{live}}.{table} (id BIGINT, kind STRING, day DATE, note STRING) USING iceberg "
        "PARTITIONED BY (kind, day) TBLPROPERTIES ('format-version'='1')"
    )
    world.sql(f"INSERT INTO {{live}}.{table} VALUES {_rows(0, 8)}, (99, NULL, NULL, NULL)")
    looks_like = f"file://{world.live_root}/ns/t/data/not-a-path"
    world.sql(f"INSERT INTO {{live}}.{table} VALUES (100, '{looks_like}', NULL, '{looks_like}')")
    world.sql(f"ALTER TABLE {{live}}.{table} ADD COLUMN size DOUBLE AFTER id")
    world.sql(f"ALTER TABLE {{live}}.{table} RENAME COLUMN note TO remark")
    world.sql(f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('owner.docs'='{looks_like}')")
    world.sql(f"INSERT INTO {{live}}.{table} VALUES (200, 1.5, 'plain', DATE '1969-12-31', 'before the epoch')")
    world.sql(f"ALTER TABLE {{live}}.{table} ADD PARTITION FIELD truncate(4, remark)")
    world.sql(f"INSERT INTO {{live}}.{table} VALUES (201, 2.5, 'plain', DATE '2024-01-15', 'another spec')")
    world.sql(f"DELETE FROM {{live}}.{table} WHERE id < 3")
    world.sql(f"ALTER TABLE {{live}}.{table} DROP COLUMN size")
    world.sql(f"INSERT OVERWRITE {{live}}.{table} VALUES (300, 'plain', DATE '2024-01-15', 'all that is left')")


def merge_on_read(
    world: World, version: int, table: str = "ns.t", *, granularity: str = "partition", upgraded_to: int | None = None
) -> None:
    """Deletes and updates by position, files in three places, a compaction, a tag and a branch. The format may be
    upgraded in the middle."""
    elsewhere = f"{world.config.catalogs.live.warehouse}/elsewhere/data"
    beyond = f"file://{world.live_root.parent}/beyond the warehouse/data"
    world.sql(
        f"CREATE TABLE {{live}}.{table} (id BIGINT, kind STRING, day DATE, note STRING) USING iceberg "
        f"PARTITIONED BY (kind) TBLPROPERTIES ('format-version'='{version}', 'write.delete.mode'='merge-on-read', "
        f"'write.update.mode'='merge-on-read', 'write.merge.mode'='merge-on-read', "
        f"'write.delete.granularity'='{granularity}', 'write.distribution-mode'='none')"
    )
    two = ("one", "two words")
    world.sql(f"INSERT INTO {{live}}.{table} SELECT /*+ REPARTITION(1) */ * FROM VALUES {_rows(0, 12, two)}")
    world.sql(f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('write.data.path'='{elsewhere}')")
    world.sql(f"INSERT INTO {{live}}.{table} SELECT /*+ REPARTITION(1) */ * FROM VALUES {_rows(12, 12, two)}")
    world.sql(f"DELETE FROM {{live}}.{table} WHERE id IN (1, 2, 13, 14)")
    world.sql(f"ALTER TABLE {{live}}.{table} CREATE TAG `before the update`")
    world.sql(f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('write.data.path'='{beyond}')")
    if upgraded_to is not None:
        world.sql(f"ALTER TABLE {{live}}.{table} SET TBLPROPERTIES ('format-version'='{upgraded_to}')")
    world.sql(f"UPDATE {{live}}.{table} SET note = 'changed' WHERE id % 4 = 0")
    world.sql(f"INSERT INTO {{live}}.{table} SELECT /*+ REPARTITION(1) */ * FROM VALUES {_rows(24, 12, two)}")
    world.sql(f"DELETE FROM {{live}}.{table} WHERE id > 10 AND id % 3 = 0")
    world.sql(f"CALL {{live}}.system.rewrite_manifests(table => '{table}')")
    world.sql(f"DELETE FROM {{live}}.{table} WHERE id IN (4, 17, 30)")
    world.sql(f"CALL {{live}}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))")
    world.sql(f"INSERT INTO {{live}}.{table} VALUES (1000, 'one', NULL, 'last')")
