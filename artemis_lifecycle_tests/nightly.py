"""What `make nightly` runs, in parts of bounded time: `python -m artemis_lifecycle_tests.nightly [PART …] [-- ARGS]`.

A part is one call of pytest. Its tests begin until its minutes are over; those that are left are skipped and say so,
and each night begins elsewhere, by its seed. A part that repeats does so with new seeds for as long. What runs on after
that is killed, and the part has failed. A run ends with the minutes and the result of each part.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field

TESTS = "artemis_lifecycle_tests"
OVERTIME = 5
"""Minutes that the last test of a part may take beyond it."""


@dataclass(frozen=True)
class Part:
    """`minutes`: in which tests of it may begin. `repeats`: with new seeds, until then."""

    does: str
    minutes: int
    paths: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    repeats: bool = False


PARTS: dict[str, Part] = {
    "foreign": Part(
        "the lifecycle and everybody else on the same tables, by seeds",
        50,
        # Alone: of many tests one process gets both shards, one after the other.
        ("foreign/test_foreign_actors.py",),
        ("-n", "2"),
        {"ARTEMIS_FOREIGN_MINUTES": "50", "ARTEMIS_FOREIGN_SHARDS": "2", "ARTEMIS_FOREIGN_STATE": ".artemis/foreign"},
    ),
    "kill": Part("kill -9 in each step of the walk, and at random times", 25, ("soak/test_kill.py",)),
    "storm": Part(
        "writers, workers, kill -9 and a failing store at once",
        20,
        ("soak/test_storm.py",),
        (),
        {"ARTEMIS_SOAK_MINUTES": "12"},
    ),
    "histories": Part(
        "random histories of snapshots against the rules and Iceberg",
        10,
        ("reachability/test_exactness.py", "reachability/test_index_life.py", "metadata/test_scan.py"),
        (),
        {"ARTEMIS_SOAK": "10"},
        repeats=True,
    ),
    "questions": Part(
        "random pasts, asked for by all ways in both tiers",
        10,
        ("cold_tier/test_random_histories.py", "cold_tier/test_questions.py"),
        (),
        {"ARTEMIS_SOAK": "5"},
        repeats=True,
    ),
    "long": Part(
        "the long forms of tests that `make test` leaves out",
        22,
        (),
        (
            *("-m", "nightly", "--deselect", f"{TESTS}/cold_tier/test_questions.py"),
            *("--deselect", f"{TESTS}/deploy"),
        ),
        {"ARTEMIS_SOAK": "1"},
    ),
    "deaths": Part(
        "all deaths of the crash matrix, of names and of dropped tables",
        13,
        (
            "integration/test_crash_matrix.py",
            "defs/test_names.py",
            "integration/test_dropped.py",
            "integration/test_leaking_month.py",
            "integration/test_names.py",
        ),
        (),
        {"ARTEMIS_SOAK": "1"},
    ),
    "memory": Part(
        "bombs and mutated files under a memory limit",
        5,
        ("storage/test_bounded.py",),
        ("-k", "memory_limit"),
        {"ARTEMIS_SOAK": "60"},
    ),
    "stack": Part(
        "the image, and the stack of containers, started and used", 10, ("deploy/test_stack.py",), ("-m", "nightly")
    ),
    "release": Part(
        "the wheel on each Python with each extra and after its predecessor, Dagster's chart",
        10,
        ("deploy/test_deployment.py", "deploy/test_upgrade.py", "deploy/test_wheel.py"),
        ("-m", "nightly"),
    ),
    "paimon": Part("random Paimon tables against Paimon", 5, ("paimon",), (), {"ARTEMIS_SOAK": "10"}, repeats=True),
}


def main(arguments: list[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    names, more = arguments[:at] or list(PARTS), arguments[at + 1 :]
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        parts = "".join(f"\n  {name:10} {part.minutes:3} min  {part.does}" for name, part in PARTS.items())
        print(f"No such part: {', '.join(unknown)}. Parts of the night:{parts}", file=sys.stderr)
        return 2
    first = int(os.environ.get("ARTEMIS_SEED", str(int(time.time()))))
    results = [(name, *_run(PARTS[name], first, more)) for name in names]
    print("\nThe night's parts")
    for name, minutes, is_green, rounds in results:
        said = "passed" if is_green else "FAILED"
        print(f"  {name:10} {said}  {minutes:5.1f} of {PARTS[name].minutes} min, {rounds} round{'s' * (rounds != 1)}")
    return int(not all(is_green for _, _, is_green, _ in results))


def _run(part: Part, seed: int, more: list[str]) -> tuple[float, bool, int]:
    """Minutes, whether all passed, and how often it ran."""
    begun, rounds, is_green = time.monotonic(), 0, True

    def left() -> float:
        return 60 * part.minutes - (time.monotonic() - begun)

    while is_green and (rounds == 0 or (part.repeats and left() > 0)):
        paths = [f"{TESTS}/{path}" for path in part.paths] or [TESTS]
        command = [sys.executable, "-m", "pytest", *paths, "-o", "timeout=0", *part.arguments, *more]
        variables = {
            **part.variables,
            **os.environ,
            "ARTEMIS_SEED": str(seed + rounds),
            "ARTEMIS_PART_SECONDS": str(int(left())),
        }
        try:
            is_green = (
                subprocess.run(command, env=variables, timeout=left() + 60 * OVERTIME, check=False).returncode == 0
            )
        except subprocess.TimeoutExpired:
            print(f"killed: it ran {OVERTIME} minutes longer than its part", file=sys.stderr)
            is_green = False
        rounds += 1
    return (time.monotonic() - begun) / 60, is_green, rounds


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
