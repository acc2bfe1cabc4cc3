"""Rewriting position-delete files in any supported format."""

from __future__ import annotations

from artemis_lifecycle.cold_tier.rewrite.avro_deletes import rewrite_avro_deletes
from artemis_lifecycle.cold_tier.rewrite.deletes import Mapped, RewrittenDelete
from artemis_lifecycle.cold_tier.rewrite.orc_deletes import rewrite_orc_deletes
from artemis_lifecycle.cold_tier.rewrite.parquet_deletes import rewrite_parquet_deletes
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, ReadLimits

_FORMATS = {"parquet": rewrite_parquet_deletes, "orc": rewrite_orc_deletes, "avro": rewrite_avro_deletes}


def rewrite_position_deletes(
    data: bytes, path: str, file_format: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """Map the paths in the rows of the position-delete file at `path`, and sort the rows as the spec requires.

    Raises HandoffFailed for formats other than Parquet, ORC and Avro, and for a file that cannot be read.
    """
    rewrite = _FORMATS.get(file_format.lower())
    if rewrite is not None:
        return rewrite(data, path, mapped, limits)
    raise HandoffFailed(
        f"Position-delete files in {file_format.upper()} cannot be rewritten",
        path=path,
        untouched="the table and all its files",
        hint="rewrite the position deletes as Parquet (write.delete.format.default, rewrite_position_delete_files), "
        "let the snapshots before that expire without a cold tier; or set cold_tier.enabled to false for this table",
    )
