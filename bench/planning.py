"""Planning a scan beside Iceberg's own planner, in one run on one table: `python -m bench.planning WORK JARS` prints
JSON. `--manifests 100000` and `--entries 10` shape the table, which Iceberg's own writers make once; `--pyiceberg`
plans with pyiceberg, too, which takes minutes for 100,000 manifests.

Each side begins with the path of the metadata file and ends with every file in hand: Iceberg's `planFiles()` on a table
loaded anew, in a JVM that has planned each query before; ours through `plan_query`, in this process. They take turns.
Sides must name the same number of files, or the run fails. All metadata is in the system's file cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from artemis_lifecycle.config.models import LifecycleConfig
from artemis_lifecycle.embedded.jars import resolve
from artemis_lifecycle.metadata.table_metadata import read_table_metadata
from artemis_lifecycle.planning.advice import Targets
from artemis_lifecycle.planning.plan import Query, plan_query
from artemis_lifecycle.spark.session import open_session, session_conf
from artemis_lifecycle.storage.stores import Stores

TARGETS = Targets(512 << 20, 8 << 20, 384 << 20, 5)
DAYS = 1000
QUERIES = {
    "one day of 1,000": "ts >= '2024-03-15T00:00:00' and ts < '2024-03-16T00:00:00'",
    "one id, in no partition": "id = 4242",
    "a value that every file may have": "value > 0.5",
}

_JAVA = r"""
import java.nio.*;
import java.util.*;
import org.apache.iceberg.*;
import org.apache.iceberg.expressions.*;
import org.apache.iceberg.hadoop.HadoopTables;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.types.*;

public class PlanningBench {
    static final Schema SCHEMA = new Schema(new Types.NestedField[] {
        Types.NestedField.required(1, "id", Types.LongType.get()),
        Types.NestedField.required(2, "ts", Types.TimestampType.withoutZone()),
        Types.NestedField.optional(3, "region", Types.StringType.get()),
        Types.NestedField.optional(4, "value", Types.DoubleType.get())});

    static ByteBuffer bytes(Type type, Object value) { return Conversions.toByteBuffer(type, value); }

    public static void make(HadoopTables tables, String location, int manifests, int entries, int days, int first)
            throws Exception {
        PartitionSpec spec = PartitionSpec.builderFor(SCHEMA).day("ts").build();
        Map properties = new HashMap();
        properties.put("format-version", "2");
        properties.put("commit.manifest-merge.enabled", "false");
        Table table = tables.create(SCHEMA, spec, properties, location);
        AppendFiles append = table.newFastAppend();
        long day = 86400000000L;
        for (int m = 0; m < manifests; m++) {
            ManifestWriter writer = ManifestFiles.write(
                2, spec, Files.localOutput(location + "/metadata/bench-" + m + ".avro"), null);
            int at = first + (int) ((long) m * days / manifests);
            for (int e = 0; e < entries; e++) {
                long number = (long) m * entries + e;
                Map counts = new HashMap(); Map nulls = new HashMap(); Map nans = new HashMap();
                Map lower = new HashMap(); Map upper = new HashMap();
                for (int id = 1; id <= 4; id++) {
                    counts.put(Integer.valueOf(id), Long.valueOf(1000));
                    nulls.put(Integer.valueOf(id), Long.valueOf(0));
                }
                nans.put(Integer.valueOf(4), Long.valueOf(0));
                lower.put(Integer.valueOf(1), bytes(Types.LongType.get(), Long.valueOf(number * 10)));
                upper.put(Integer.valueOf(1), bytes(Types.LongType.get(), Long.valueOf(number * 10 + 9)));
                lower.put(Integer.valueOf(2), bytes(Types.LongType.get(), Long.valueOf(at * day)));
                upper.put(Integer.valueOf(2), bytes(Types.LongType.get(), Long.valueOf(at * day + day - 1)));
                lower.put(Integer.valueOf(3), bytes(Types.StringType.get(), "eu-central"));
                upper.put(Integer.valueOf(3), bytes(Types.StringType.get(), "us-west"));
                lower.put(Integer.valueOf(4), bytes(Types.DoubleType.get(), Double.valueOf(0.0)));
                upper.put(Integer.valueOf(4), bytes(Types.DoubleType.get(), Double.valueOf(1.0)));
                PartitionData partition = new PartitionData(spec.partitionType());
                partition.set(0, Integer.valueOf(at));
                DataFiles.Builder file = DataFiles.builder(spec);
                file.withPath(location + "/data/ts_day=" + at + "/00000-" + number + "-0.parquet");
                file.withFormat("parquet");
                file.withFileSizeInBytes(4000000 + number % 1000);
                file.withPartition(partition);
                file.withMetrics(new Metrics(Long.valueOf(1000), null, counts, nulls, nans, lower, upper));
                writer.add((ContentFile) file.build());
            }
            writer.close();
            append.appendManifest(writer.toManifestFile());
        }
        append.commit();
    }

    public static Expression filter(int query, long from, long to) {
        if (query == 0) {
            return Expressions.and(
                Expressions.greaterThanOrEqual("ts", Long.valueOf(from)), Expressions.lessThan("ts", Long.valueOf(to)));
        }
        if (query == 1) { return Expressions.equal("id", Long.valueOf(4242)); }
        return Expressions.greaterThan("value", Double.valueOf(0.5));
    }

    public static String plan(HadoopTables tables, String location, int query, long from, long to) throws Exception {
        long began = System.nanoTime();
        long files = 0;
        TableScan scan = (TableScan) tables.load(location).newScan();
        scan = (TableScan) scan.filter(filter(query, from, to));
        CloseableIterable tasks = scan.planFiles();
        Iterator each = tasks.iterator();
        while (each.hasNext()) { each.next(); files++; }
        tasks.close();
        return ((System.nanoTime() - began) / 1e9) + " " + files;
    }
}
"""
_FIRST = 19_000
_FROM = 19_797 * 86_400_000_000  # 2024-03-15, whose day is among the table's.


class _Iceberg:
    def __init__(self, work: Path, jars: Path) -> None:
        config = LifecycleConfig.model_validate({"home": work / "home", "spark": {"master": "local[*]"}})
        self.spark = open_session(session_conf(config, {}, resolve(jars)))
        jvm: Any = self.spark._jvm
        context: Any = self.spark.sparkContext
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(_JAVA)
        made = compiler.getClassLoader().loadClass("PlanningBench")
        self._methods = {each.getName(): each for each in made.getDeclaredMethods()}
        self._jvm, self._gateway = jvm, context._gateway
        self._tables = jvm.org.apache.iceberg.hadoop.HadoopTables(context._jsc.hadoopConfiguration())

    def call(self, name: str, *arguments: Any) -> Any:
        array = self._gateway.new_array(self._jvm.java.lang.Object, 1 + len(arguments))
        array[0] = self._tables
        for place, each in enumerate(arguments, 1):
            array[place] = self._jvm.java.lang.Long(each) if isinstance(each, int) and each > 2**31 else each
        return self._methods[name].invoke(None, array)

    def plan(self, location: str, query: int) -> tuple[float, int]:
        seconds, files = self.call("plan", location, query, _FROM, _FROM + 86_400_000_000).split(" ")
        return float(seconds), int(files)


def main(
    work: Path, jars: Path, manifests: int, entries: int, repetitions: int, queries: int, with_pyiceberg: bool
) -> dict[str, Any]:
    work.mkdir(parents=True, exist_ok=True)
    folder = work / f"planning-{manifests}-{entries}"
    iceberg = _Iceberg(work, jars)
    try:
        if not (folder / "metadata" / "v2.metadata.json").exists():
            iceberg.call("make", str(folder), manifests, entries, DAYS, _FIRST)
        location = f"file://{folder}/metadata/v2.metadata.json"
        size = sum(each.stat().st_size for each in (folder / "metadata").glob("*.avro"))
        shown = [
            _compared(iceberg, str(folder), location, number, name, text, repetitions, with_pyiceberg)
            for number, (name, text) in list(enumerate(QUERIES.items()))[:queries]
        ]
        return {
            "manifests": manifests,
            "entries": manifests * entries,
            "metadata_bytes": size,
            "cores": os.cpu_count(),
            "queries": shown,
        }
    finally:
        iceberg.spark.stop()


def _compared(
    iceberg: _Iceberg,
    folder: str,
    location: str,
    number: int,
    name: str,
    text: str,
    repetitions: int,
    with_pyiceberg: bool,
) -> dict[str, Any]:
    theirs: list[float] = []
    ours: list[float] = []
    used: list[float] = []
    files = passes = None
    iceberg.plan(folder, number)
    _timed(lambda: _ours(location, text))
    for _ in range(repetitions):
        seconds, expected = iceberg.plan(folder, number)
        theirs.append(seconds)
        worked = time.process_time()
        seconds, plan = _timed(lambda: _ours(location, text))
        used.append(time.process_time() - worked)
        ours.append(seconds)
        files, passes = plan.files_selected, [f"{each.selected:,} of {each.total:,}" for each in plan.passes]
        if files != expected:
            raise SystemExit(f"{name}: {files} files, and Iceberg plans {expected}")
    found: dict[str, Any] = {
        "query": name,
        "predicate": text,
        "files": files,
        "passes": passes,
        "iceberg_seconds": [round(each, 3) for each in theirs],
        "our_seconds": [round(each, 3) for each in ours],
        "our_cpu_seconds": [round(each, 3) for each in used],
        "times_as_fast": round(statistics.median(theirs) / statistics.median(ours), 2),
    }
    if with_pyiceberg:
        seconds, count = _timed(lambda: _pyiceberg(location, text))
        found["pyiceberg_seconds"] = round(seconds, 3)
        if count != files:
            found["pyiceberg_files"] = count
    return found


def _ours(location: str, text: str) -> Any:
    stores = Stores()
    return plan_query(stores, "bench.t", read_table_metadata(stores, location), Query(text), TARGETS)


def _pyiceberg(location: str, text: str) -> int:
    from pyiceberg.table import StaticTable

    return sum(1 for _ in StaticTable.from_metadata(location).scan(row_filter=text).plan_files())


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = work()
    return time.perf_counter() - began, found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("jars", type=Path)
    parser.add_argument("--manifests", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=10)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--queries", type=int, default=len(QUERIES), help="only the first ones")
    parser.add_argument("--pyiceberg", action="store_true")
    given = parser.parse_args()
    shape = given.manifests, given.entries, given.repetitions, given.queries
    print(json.dumps(main(given.work, given.jars, *shape, given.pyiceberg), indent=1))
