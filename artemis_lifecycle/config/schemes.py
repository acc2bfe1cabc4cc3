"""Schemes of paths on S3. Another spelling is added here alone; another kind of store, in `storage/stores.py`."""

from __future__ import annotations

S3_SCHEMES = ("s3", "s3a", "s3n")
"""The first is that of locations, and the others equal it."""

EQUAL_SCHEMES = dict.fromkeys(S3_SCHEMES[1:], S3_SCHEMES[0])
"""As `orphans.equal_schemes`, by default."""


def on_s3(warehouse: str) -> bool:
    """Whether a warehouse is on S3."""
    return warehouse.startswith(tuple(f"{scheme}://" for scheme in S3_SCHEMES))
