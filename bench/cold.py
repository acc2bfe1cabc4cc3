"""What publishing one more night costs a cold table of very many snapshots: reading its metadata, adding the night's
snapshots, and what both parsers take. `python -m bench.cold FILE JARS SNAPSHOTS NIGHT` prints JSON; FILE is a metadata
file of at least so many snapshots (`make bench ARGS="--shape metadata"` leaves them).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from artemis_lifecycle.cold_tier import cold_metadata
from artemis_lifecycle.cold_tier.paths import ColdIdentity, PathMapping
from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.metadata.table_metadata import metadata_json, parse_table_metadata
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.location import LocationRules

Answer = TypeVar("Answer")


def measure(file: Path, jars: Path, snapshots: int, night: int) -> dict[str, Any]:
    """Seconds of each part of publishing `night` more snapshots beside `snapshots`, the best of three."""
    live = metadata_json(file.read_bytes(), str(file))
    ids = [snapshot["snapshot-id"] for snapshot in live["snapshots"]]
    root = live["location"]
    identity = ColdIdentity(
        table_uuid=live["table-uuid"],
        live_table="bench.t",
        cold_table="bench.t",
        live_warehouse=root,
        cold_warehouse=f"{root}-cold",
        live_location=root,
        cold_location=f"{root}-cold",
        mirrored=True,
        rules=LocationRules(),
    )
    mapping = PathMapping(identity)
    before = cold_metadata.build_metadata(live, None, None, set(ids[:snapshots]), identity, mapping)
    stored = cold_metadata.to_bytes(before)
    conf = session_conf(LifecycleConfig.model_validate({"spark": {"master": "local[2]"}}), {}, resolve(jars))
    spark = open_session(conf)
    assert spark._jvm is not None
    parser = spark._jvm.org.apache.iceberg.TableMetadataParser
    nothing: dict[str, Any] = {"snapshots": [], "refs": {}, "snapshot-log": [], "current-snapshot-id": -1}
    _parsed_by_iceberg(parser, json.dumps({**before, **nothing}).encode())
    seconds: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], Answer]) -> Answer:
        began = time.perf_counter()
        answer = work()
        seconds.setdefault(name, []).append(time.perf_counter() - began)
        return answer

    added = set(ids[snapshots : snapshots + night])
    new: dict[str, Any] = {}
    data = b""
    for _ in range(3):
        cold = timed("read", partial(metadata_json, stored, "cold.metadata.json"))
        new = timed("build", partial(cold_metadata.build_metadata, live, cold, "cold", added, identity, mapping))
        data = timed("write", partial(cold_metadata.to_bytes, new))
        timed("parse", partial(parse_table_metadata, data, "cold.metadata.json"))
        timed("iceberg", partial(_parsed_by_iceberg, parser, data))
    spark.stop()
    return {
        "snapshots": len(cold_metadata.snapshot_ids(new)),
        "night": night,
        "bytes": len(data),
        "seconds": {name: min(taken) for name, taken in seconds.items()},
    }


def _parsed_by_iceberg(parser: Any, data: bytes) -> int:
    return int(parser.fromJson("cold.metadata.json", data.decode()).snapshots().size())


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))))
