"""The figures of one pass."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Pass:
    """What one pass gets and what it leaves. `reads_bytes` is what the pass itself reads to decide that; bytes are
    those of the things that it counts: manifests, data files, or row groups."""

    name: str
    total: int
    selected: int
    bytes_total: int
    bytes_selected: int
    reads_requests: int
    reads_bytes: int
    seconds: float

    @property
    def pruned_share(self) -> float:
        """The share that the pass removes, from 0 to 1."""
        return 1 - self.selected / self.total if self.total else 0.0
