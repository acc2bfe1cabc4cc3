"""The lifecycle's steps and everything that others do, in any order, on real tables: after each step of the lifecycle
every snapshot that could be read before it can be read, from one tier or the other, with the same rows. At the end of
each seed what the lifecycle did is replayed against the model in spec/: it must be a run of it.

`model.py` says what counts as readable, and what others may destroy. For 45 seconds in `make test`, 50 minutes in `make
nightly PART=foreign`. A failure prints its history and the command that replays it. Variables:

- `ARTEMIS_FOREIGN_MINUTES`, `ARTEMIS_FOREIGN_ACTIONS`: how long a campaign lasts, by time or by actions of others.
- `ARTEMIS_FOREIGN_SHARDS`: so many tests, each with its share of the seeds, for pytest's `-n`.
- `ARTEMIS_FOREIGN_STATE`: a folder in which each shard notes what it has done; the next run goes on from there.
- `ARTEMIS_FOREIGN_SEED`: this seed only; `ARTEMIS_FOREIGN_TURNS` (`3,7,12-20`): only these turns of it.
- `ARTEMIS_FOREIGN_SHRINK`: seconds in which a failure is cut down to the turns that it needs.
- `ARTEMIS_FOREIGN_WITHOUT`: actions and steps to leave out, to get behind what is known.
- `ARTEMIS_FOREIGN_OFTEN`: actions to do ten times as often.
- `ARTEMIS_FOREIGN_HISTORIES`: a folder for the history of each seed, which `spec/replay.py` reads.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from artemis_lifecycle_tests.end_report import add_lines
from artemis_lifecycle_tests.foreign.machine import Campaign, Lab, report, turns_of


def _variable(name: str, default: str = "") -> str:
    return os.environ.get(f"ARTEMIS_FOREIGN_{name}", default)


# Read before the fixture of the tests' conftest takes such variables away.
EMPTY_DATABASE = True
"""The schema is made under a clock that steps."""
ACTIONS = int(_variable("ACTIONS", "0")) or None
MINUTES = float(_variable("MINUTES", "0.75")) if ACTIONS is None or _variable("MINUTES") else None
SHARDS = int(_variable("SHARDS", "1"))
STATE = _variable("STATE")
SEED, TURNS = _variable("SEED"), list(turns_of(_variable("TURNS")))
SHRINK = float(_variable("SHRINK", "0"))
WITHOUT = set(_variable("WITHOUT").split(","))
OFTEN = set(_variable("OFTEN").split(","))
HISTORIES = _variable("HISTORIES")
FIRST_SEED = int(os.environ.get("ARTEMIS_SEED", "1"))
IS_LONG = STATE != "" or ACTIONS is not None

_SAID = "".join(f" ARTEMIS_FOREIGN_{name}={_variable(name)}" for name in ("WITHOUT", "OFTEN") if _variable(name))
REPLAY = "ARTEMIS_FOREIGN_SEED={seed}{turns}{said} .venv/bin/python -m pytest artemis_lifecycle_tests/foreign -n 0"


@pytest.mark.timeout(0)
@pytest.mark.no_guardian(reason="model.py judges every step, and the rows of every snapshot")
@pytest.mark.parametrize("shard", range(SHARDS), ids=lambda shard: f"shard-{shard + 1}-of-{SHARDS}")
def test_nothing_is_lost_whatever_others_do(lab: Lab, shard: int) -> None:
    lab.without, lab.often, lab.histories = WITHOUT, OFTEN, Path(HISTORIES) if HISTORIES else None
    if SEED:
        _replay(lab, int(SEED))
        return
    state = Path(STATE) / f"shard-{shard + 1}-of-{SHARDS}.json" if STATE else None
    campaign = Campaign(
        lab,
        FIRST_SEED + shard,
        SHARDS,
        MINUTES,
        None if ACTIONS is None else ACTIONS // SHARDS,
        state,
        most_failures=10 if IS_LONG else 1,
    )
    failures = campaign.run()
    lines = report(lab.counted, campaign.seconds)
    add_lines(f"others on the same tables, shard {shard + 1} ({len(failures)} losses)", lines)
    if failures:
        pytest.fail(
            "\n\n".join(f"{text}\n{REPLAY.format(seed=seed, turns='', said=_SAID)}" for seed, text in failures.items())
        )


def _replay(lab: Lab, seed: int) -> None:
    turns, failure = TURNS or None, lab.live(seed, TURNS or None)
    if failure is not None and SHRINK:
        failure, turns = lab.shrink(seed, failure, SHRINK, turns)
    print("\n".join(lab.history))
    if failure is not None:
        chosen = "" if turns is None else f" ARTEMIS_FOREIGN_TURNS={','.join(map(str, turns))}"
        pytest.fail(f"{failure}\n{REPLAY.format(seed=seed, turns=chosen, said=_SAID)}")
