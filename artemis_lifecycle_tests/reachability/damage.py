"""What befalls files: lost, cut, flipped, swapped, replaced by another table's or by their own past."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from artemis_lifecycle_tests.reachability.metadata_tables import Tape


def contents(folder: str) -> dict[str, bytes]:
    """The files below `folder`, by their relative path."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = f"{root}/{name}"
            found[path.removeprefix(f"{folder}/")] = Path(path).read_bytes()
    return found


def restore(folder: str, files: dict[str, bytes]) -> None:
    """Make `files` what lies below `folder`, and nothing else."""
    for name in contents(folder).keys() - files.keys():
        os.unlink(f"{folder}/{name}")
    for name, data in files.items():
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        Path(f"{folder}/{name}").write_bytes(data)


@dataclass
class Damage:
    """Damages the files below `folder`, knowing nothing of what is in them. `past` are the contents they once had, and
    `foreign` another table's."""

    folder: str
    foreign: dict[str, bytes] = field(default_factory=dict)
    past: list[dict[str, bytes]] = field(default_factory=list)

    def remember(self) -> None:
        self.past.append(contents(self.folder))

    def strike(self, tape: Tape) -> str:
        """One damage; what it was."""
        kinds: list[Callable[[Tape, dict[str, bytes]], None]] = [
            self._lose_all,
            self._lose_one,
            self._cut,
            self._flip,
            self._empty,
            self._lengthen,
            self._double,
            self._swap,
            self._replace_by_foreign,
            self._replace_by_past,
            self._go_back,
        ]
        files = contents(self.folder)
        strike = tape.of(kinds)
        if files:
            strike(tape, files)
        return str(strike.__name__)

    def _write(self, name: str, data: bytes) -> None:
        Path(f"{self.folder}/{name}").write_bytes(data)

    def _one(self, tape: Tape, files: dict[str, bytes]) -> str:
        return str(tape.of(sorted(files)))

    def _lose_all(self, _: Tape, files: dict[str, bytes]) -> None:
        for name in files:
            os.unlink(f"{self.folder}/{name}")

    def _lose_one(self, tape: Tape, files: dict[str, bytes]) -> None:
        os.unlink(f"{self.folder}/{self._one(tape, files)}")

    def _cut(self, tape: Tape, files: dict[str, bytes]) -> None:
        name = self._one(tape, files)
        self._write(name, files[name][: _place(tape, len(files[name]))])

    def _flip(self, tape: Tape, files: dict[str, bytes]) -> None:
        name = self._one(tape, files)
        data = bytearray(files[name])
        for _ in range(1 + tape.below(3)):
            if data:
                data[_place(tape, len(data))] ^= 1 << tape.below(8)
        self._write(name, bytes(data))

    def _empty(self, tape: Tape, files: dict[str, bytes]) -> None:
        self._write(self._one(tape, files), b"")

    def _lengthen(self, tape: Tape, files: dict[str, bytes]) -> None:
        name = self._one(tape, files)
        self._write(name, files[name] + bytes(8))

    def _double(self, tape: Tape, files: dict[str, bytes]) -> None:
        name = self._one(tape, files)
        self._write(name, files[name] * 2)

    def _swap(self, tape: Tape, files: dict[str, bytes]) -> None:
        one, other = self._one(tape, files), self._one(tape, files)
        self._write(one, files[other])
        self._write(other, files[one])

    def _replace_by_foreign(self, tape: Tape, files: dict[str, bytes]) -> None:
        if self.foreign:
            self._write(self._one(tape, files), self.foreign[tape.of(sorted(self.foreign))])

    def _replace_by_past(self, tape: Tape, files: dict[str, bytes]) -> None:
        past = tape.of(self.past) if self.past else {}
        if past:
            self._write(self._one(tape, files), past[tape.of(sorted(past))])

    def _go_back(self, tape: Tape, files: dict[str, bytes]) -> None:
        """All files, or one of them, as they were at some earlier time: a backup, a lagging replica."""
        past = tape.of(self.past) if self.past else {}
        if tape.once_in(2):
            restore(self.folder, past)
        elif past:
            name = tape.of(sorted(past))
            self._write(name, past[name])


def _place(tape: Tape, length: int) -> int:
    # A quarter of all blows fall on the first bytes, where headers are.
    if not length:
        return 0
    if tape.once_in(4):
        return tape.below(min(length, 96))
    return (tape.below(256) * 256 + tape.below(256)) * length >> 16
