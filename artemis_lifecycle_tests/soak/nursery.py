"""Where pyiceberg writers are born: what they import is loaded once, and each is a fork.

    python -m artemis_lifecycle_tests.soak.nursery HOME

Reads lines `NAME SEED` and answers each with a process number. Killed ones are of no concern to it.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback

from artemis_lifecycle_tests.soak import place, writer


def main() -> int:
    home = sys.argv[1]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody asks how they ended.
    for line in sys.stdin:
        name, seed = line.split()
        pid = os.fork()
        if pid == 0:
            _live(home, name, int(seed))
        print(pid, flush=True)
    return 0


def _live(home: str, name: str, seed: int) -> None:
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(f"{home}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        writer.live(place.load(home), name, seed)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
