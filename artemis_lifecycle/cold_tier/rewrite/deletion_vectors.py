"""Rewriting files of deletion vectors (Puffin)."""

from __future__ import annotations

import json
from typing import Any

from artemis_lifecycle.cold_tier.rewrite.deletes import Mapped, RewrittenDelete
from artemis_lifecycle.errors import HandoffFailed
from artemis_lifecycle.storage.bounded import DEFAULT_LIMITS, Allowance, ReadLimits, bounded_json

_PUFFIN = b"PFA1"
_FOOTER_COMPRESSED = 0x01


def rewrite_deletion_vectors(
    data: bytes, path: str, mapped: Mapped, limits: ReadLimits = DEFAULT_LIMITS
) -> tuple[bytes, RewrittenDelete]:
    """Map the paths of the data files to which the blobs of the Puffin file at `path` belong. The blobs do not change.

    Raises HandoffFailed for a file with a broken structure.
    """
    try:
        start, footer = _puffin_footer(data, limits.allowance(path, len(data)))
        for blob in footer["blobs"]:
            if blob["offset"] < 4 or blob["length"] < 0 or blob["offset"] + blob["length"] > start:
                raise ValueError("a blob is outside the file's body")
            properties = blob.get("properties", {})
            if "referenced-data-file" in properties:
                properties["referenced-data-file"] = mapped(properties["referenced-data-file"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise HandoffFailed(
            f"A file of deletion vectors cannot be read completely: {error!r:.200}",
            path=path,
            untouched="the table and all its files",
            hint="restore the file, then run the handoff again",
        ) from error
    payload = json.dumps(footer, separators=(",", ":"), ensure_ascii=False).encode()
    tail = _PUFFIN + payload + len(payload).to_bytes(4, "little") + bytes(4) + _PUFFIN
    rewritten = data[:start] + tail
    return rewritten, RewrittenDelete(len(rewritten))


def _puffin_footer(data: bytes, allowance: Allowance) -> tuple[int, dict[str, Any]]:
    """Return where the footer begins, and its payload."""
    if len(data) < 20 or data[:4] != _PUFFIN or data[-4:] != _PUFFIN:
        raise ValueError("it does not have the magic bytes of a Puffin file")
    flags = data[-8:-4]
    size = int.from_bytes(data[-12:-8], "little")
    start = len(data) - 12 - size - 4
    if start < 4 or data[start : start + 4] != _PUFFIN:
        raise ValueError("its footer has the wrong length")
    payload = data[start + 4 : len(data) - 12]
    if flags[0] & ~_FOOTER_COMPRESSED or any(flags[1:]):
        raise ValueError(f"it has flags that the Puffin specification does not define ({flags.hex()})")
    if flags[0] & _FOOTER_COMPRESSED:
        payload = allowance.undo("lz4", payload)
    footer = bounded_json(payload, allowance.path)
    if not isinstance(footer, dict):
        raise ValueError("its footer is not a JSON object")
    return start, footer
