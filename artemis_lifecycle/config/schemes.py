"""Schemes of paths on S3. Add another spelling here only; add another kind of store in `storage/stores.py`."""

from __future__ import annotations

S3_SCHEMES = ("s3", "s3a", "s3n")
"""Locations use the first; the others are equal to it."""

EQUAL_SCHEMES = dict.fromkeys(S3_SCHEMES[1:], S3_SCHEMES[0])
"""The default of `orphans.equal_schemes`."""


def on_s3(warehouse: str) -> bool:
    """Return True if a warehouse is on S3."""
    return warehouse.startswith(tuple(f"{scheme}://" for scheme in S3_SCHEMES))
