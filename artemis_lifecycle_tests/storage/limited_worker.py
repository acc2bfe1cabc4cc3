"""Reads hostile files in a process that may not grow: `python -m artemis_lifecycle_tests.storage.limited_worker SECONDS
SEED`. Prints one JSON line for each finding, and at last how many files were read.

Every file ends in a result, or in an error of this project that names the file; nothing else is let through, a
MemoryError least of all. A file that takes too long kills the process, and the last line on standard error names it.
"""

from __future__ import annotations

import faulthandler
import json
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import psutil

from artemis_lifecycle.errors import LifecycleError
from artemis_lifecycle.storage.bounded import ReadLimits
from artemis_lifecycle.storage.settings import StoreSettings
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.storage.hostile_files import Reader, readers

MEMORY = 1536 << 20
"""What reading one file may take, beside the address space that the process has before (which creeps: allocators keep
what they have had)."""

LONGEST = 60
"""Seconds, on a shared machine."""


class Worker:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = psutil.Process()
        self.limited = False
        self.stores = Stores(StoreSettings(limits=ReadLimits(max_bytes=1 << 30)))
        self.outcomes: Counter[str] = Counter()
        self.findings: list[dict[str, str]] = []

    def read(self, what: str, reader: Reader, data: bytes) -> str:
        """Read one file and return how that ended."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        path = self.folder / reader.name
        path.write_bytes(data)
        for name, content in reader.beside(data).items():
            (self.folder / name).write_bytes(content)
        print(f"{time.monotonic():.1f} {what}, {len(data):,} bytes", file=sys.stderr, flush=True)
        if self.limited:
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (self.process.memory_info().vms + MEMORY, hard))
        faulthandler.dump_traceback_later(LONGEST, exit=True)
        try:
            reader.read(self.stores, f"file://{path}")
            outcome = "read"
        except LifecycleError as error:
            outcome = type(error).__name__
            if self.folder.name not in str(error) or len(str(error)) > 5_000:
                self._find(what, f"does not name the file, or says too much: {str(error)[:300]}")
        except BaseException:
            outcome = "raised"
            self._find(what, traceback.format_exc()[-1_500:])
        finally:
            faulthandler.cancel_dump_traceback_later()
        self.outcomes[outcome] += 1
        return outcome

    def _find(self, what: str, said: str) -> None:
        self.findings.append({"file": what, "said": said})


def mutated(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """`data` with one to four damages that know nothing of it."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out) + 1)
        match chance.randrange(8):
            case 0:
                del out[at:]
            case 1:
                del out[at : at + chance.choice((1, 2, 16, 500))]
            case 2:
                out[at:at] = chance.randbytes(chance.choice((1, 2, 16)))
            case 3:
                # What a length is likely to be made of.
                out[at : at + 5] = chance.choice((b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\xff", b"\0\0\0\0\0"))
            case 4:
                out[at:at] = out[at : at + chance.choice((8, 64, 1000))]
            case 5:
                start = chance.randrange(len(other) + 1)
                out[at : at + 50] = other[start : start + 50]
            case _:
                if out and at < len(out):
                    out[at] ^= 1 << chance.randrange(8)
    return bytes(out)


def case(every: Mapping[str, Reader], seed: int, number: int) -> tuple[str, bytes]:
    """The name of a reader and a damaged file for it, always the same for a seed and a number."""
    own = random.Random(f"{seed} {number}")
    names = list(every)
    name, other = names[number % len(names)], every[own.choice(names)]
    reader = every[name]
    if reader.packed is not None and own.random() < 0.5:
        unpack, pack = reader.packed
        return name, pack(mutated(unpack(reader.valid), other.valid, own))
    return name, mutated(reader.valid, other.valid, own)


def main(seconds: float, seed: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="artemis-hostile-"))
    worker, every = Worker(folder / "read"), readers()
    try:
        for name, reader in every.items():
            worker.read(f"{name}: valid", reader, reader.valid)
        made: dict[object, bytes] = {}
        bombs = []
        for name, reader in every.items():
            for bomb, make in reader.bombs.items():
                if make not in made:
                    made[make] = make()
                bombs.append((f"{name}: {bomb}", reader, made[make]))
        del made
        worker.limited = True
        for what, reader, data in bombs:
            worker.read(what, reader, data)
        ends = time.monotonic() + seconds
        number = 0
        while time.monotonic() < ends:
            name, data = case(every, seed, number)
            worker.read(f"{name}: case {number} of seed {seed}", every[name], data)
            number += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({"outcomes": worker.outcomes, "findings": worker.findings}))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
