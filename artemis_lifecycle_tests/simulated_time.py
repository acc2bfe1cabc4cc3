"""A clock whose time passes only in `sleep`, and by hand."""

from __future__ import annotations


class SimulatedTime:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
