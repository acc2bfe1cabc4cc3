"""What commands cost that look at a table: `python -m bench.commands .artemis/demo/lifecycle.yaml` prints JSON.

On the demo's tables (`make demo`), each in a process of its own, from the shell to the prompt, once after one that
warmed the disk's cache. Before the second `health` the table gets a tag of a day, so that it is measured anew. A
command that fails ends the run. The last entry is what importing the package costs: the libraries that cost the most.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time

from bench.sampling import processor_seconds

TABLE = "artemis.orbital_object_registry"
COMMANDS = (
    *("plans", "tags", "holds", "fleet", "commit-costs", "health", "snapshot-at NOW", "history"),
    *("schema-history", "plan", "explain PATH", "costs", "compact --dry-run", "retention-curve"),
    *("plan-query catalog_number=25544", "tag", "health"),
)


def main(config: str) -> list[dict[str, object]]:
    def artemis(command: str, *more: str) -> str:
        name, *words = command.split()
        table = () if name == "fleet" else (TABLE,)
        asked = [sys.executable, "-m", "artemis_lifecycle.cli", name, *table, *words, "--config", config, *more]
        return subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout

    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    files = re.findall(r'"([^"]+\.parquet)"', artemis("plan-query catalog_number>0", "--files", "--json"))
    snapshot = re.findall(r'"snapshot_id": "?(\d+)', artemis(f"snapshot-at {now}", "--json"))
    places = {"PATH": files[0], "NOW": now, "tag": f"tag bench-{time.time_ns()} {snapshot[0]} --retain 1d --why bench"}
    artemis("health")
    found: list[dict[str, object]] = []
    for command in COMMANDS:
        told = " ".join(places.get(word, word) for word in command.split())
        began, worked = time.perf_counter(), processor_seconds()
        artemis(told)
        used = round(processor_seconds() - worked, 2)
        found.append({"command": command, "seconds": round(time.perf_counter() - began, 2), "cpu_seconds": used})
    imported = [sys.executable, "-X", "importtime", "-c", "import artemis_lifecycle.cli"]
    lines = subprocess.run(imported, check=True, capture_output=True, text=True).stderr.splitlines()
    parts = sorted((int(line.split("|")[1]), line.split("|")[2].strip()) for line in lines[1:])
    return [*found, {"imports, microseconds": {name: spent for spent, name in reversed(parts[-12:])}}]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1]), indent=1))
