"""The machine that a figure is of, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path


def machine(cores: int, jars: str | Path) -> dict[str, object]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return {
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
        "processor": model,
        "cores": cores,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "pyspark": version("pyspark"),
        "iceberg": next(iter(Path(jars, "jars").glob("iceberg-spark-runtime-*.jar")), Path("?")).stem,
        "commit": commit.stdout.strip(),
    }
