"""Schemes of paths in object stores. Add another spelling here only; another kind of store in `storage/stores.py`."""

from __future__ import annotations

S3_SCHEMES = ("s3", "s3a", "s3n")
"""Locations use the first; the others are equal to it."""

AZURE_SCHEMES = ("abfss", "abfs", "wasbs", "wasb")
GCS_SCHEMES = ("gs",)

KINDS = (S3_SCHEMES, AZURE_SCHEMES, GCS_SCHEMES)

EQUAL_SCHEMES = {spelling: kind[0] for kind in KINDS for spelling in kind[1:]}
"""The default of `orphans.equal_schemes`."""


def kind_of(path: str) -> str | None:
    """Return the first scheme of the path's kind of object store; None for a local path or an unknown scheme."""
    scheme, separator, _ = path.partition(":")
    return next((kind[0] for kind in KINDS if separator and scheme.lower() in kind), None)


def one_authority(scheme: str, authority: str) -> str:
    """Return the authority in the form that all spellings of a place share. An Azure account answers at two hosts,
    `<account>.dfs.…` and `<account>.blob.…`, with the same objects."""
    if scheme != AZURE_SCHEMES[0] or "@" not in authority:
        return authority
    container, _, host = authority.partition("@")
    account, dot, rest = host.partition(".")
    return f"{container}@{account}{dot}{'dfs' + rest[4:] if rest.startswith('blob.') else rest}"
