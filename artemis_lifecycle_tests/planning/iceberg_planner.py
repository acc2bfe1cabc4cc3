"""Iceberg's own planner, in the session's JVM: makes tables of files that exist in metadata only, and plans scans.

Values cross as their single-value serialization in hex, and become Java values by Iceberg's own Conversions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA = r"""
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.iceberg.*;
import org.apache.iceberg.expressions.*;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.metrics.*;
import org.apache.iceberg.transforms.Transform;
import org.apache.iceberg.types.*;
import org.apache.iceberg.util.SerializableFunction;

public class PlannerOracle {
    static ByteBuffer bytes(String hex) {
        byte[] out = new byte[hex.length() / 2];
        for (int i = 0; i < out.length; i++) {
            out[i] = (byte) Integer.parseInt(hex.substring(2 * i, 2 * i + 2), 16);
        }
        return ByteBuffer.wrap(out);
    }

    static Object value(Type type, String hex) {
        if (hex.equals("~")) { return null; }
        Object found = Conversions.fromByteBuffer(type, bytes(hex));
        return type.typeId() == Type.TypeID.STRING ? found.toString() : found;
    }

    // id:values:nulls:nans:lower:upper, separated by spaces; a dash is not recorded, a tilde is no value.
    static Metrics metrics(long records, String text) {
        Map values = new HashMap(); Map nulls = new HashMap(); Map nans = new HashMap();
        Map lower = new HashMap(); Map upper = new HashMap();
        StringTokenizer each = new StringTokenizer(text, " ");
        while (each.hasMoreTokens()) {
            String[] parts = each.nextToken().split(":");
            Integer id = Integer.valueOf(parts[0]);
            if (!parts[1].equals("-")) { values.put(id, Long.valueOf(parts[1])); }
            if (!parts[2].equals("-")) { nulls.put(id, Long.valueOf(parts[2])); }
            if (!parts[3].equals("-")) { nans.put(id, Long.valueOf(parts[3])); }
            if (!parts[4].equals("-")) { lower.put(id, bytes(parts[4].substring(1))); }
            if (!parts[5].equals("-")) { upper.put(id, bytes(parts[5].substring(1))); }
        }
        if (text.isEmpty()) { return new Metrics(Long.valueOf(records)); }
        return new Metrics(Long.valueOf(records), null, values, nulls, nans, lower, upper);
    }

    // The source values of a partition, one word for each field of the spec; Iceberg's transforms make the partition.
    static PartitionData partition(PartitionSpec spec, String words) {
        PartitionData data = new PartitionData(spec.partitionType());
        StringTokenizer each = new StringTokenizer(words, " ");
        for (int i = 0; i < spec.fields().size(); i++) {
            PartitionField field = (PartitionField) spec.fields().get(i);
            String word = each.nextToken();
            Type source = spec.schema().findType(field.sourceId());
            if (source == null) { continue; }
            Transform transform = field.transform();
            Object found = value(source, word);
            data.set(i, found == null ? null : transform.bind(source).apply(found));
        }
        return data;
    }

    public static DataFile dataFile(
            Table table, int spec, String path, String format, long records, String words, String stats) {
        PartitionSpec of = (PartitionSpec) table.specs().get(Integer.valueOf(spec));
        DataFiles.Builder builder = DataFiles.builder(of);
        builder.withPath(path);
        builder.withFormat(format);
        builder.withFileSizeInBytes(100 + records);
        builder.withMetrics(metrics(records, stats));
        builder.withRecordCount(records);
        if (!of.fields().isEmpty()) { builder.withPartition(partition(of, words)); }
        return builder.build();
    }

    public static DeleteFile deleteFile(
            Table table, int spec, String path, String kind, String target, String ids, long records, String words,
            String stats) {
        PartitionSpec of = (PartitionSpec) table.specs().get(Integer.valueOf(spec));
        FileMetadata.Builder builder = FileMetadata.deleteFileBuilder(of);
        if (kind.equals("equality")) {
            StringTokenizer each = new StringTokenizer(ids, " ");
            int[] found = new int[each.countTokens()];
            for (int i = 0; i < found.length; i++) { found[i] = Integer.parseInt(each.nextToken()); }
            builder.ofEqualityDeletes(found);
        } else {
            builder.ofPositionDeletes();
        }
        builder.withPath(path);
        builder.withFormat(kind.equals("vector") ? "puffin" : "parquet");
        builder.withFileSizeInBytes(50 + records);
        builder.withMetrics(metrics(records, stats));
        builder.withRecordCount(records);
        if (kind.equals("vector")) { builder.withContentOffset(4); builder.withContentSizeInBytes(40); }
        if (!target.isEmpty()) { builder.withReferencedDataFile(target); }
        if (!of.fields().isEmpty()) { builder.withPartition(partition(of, words)); }
        return builder.build();
    }

    private String[] words;
    private int at;
    private Schema schema;

    // Prefix notation, separated by spaces: and, or, not; or an operation, the column, the number of values, values.
    public static Expression expression(Schema schema, String text) {
        PlannerOracle parser = new PlannerOracle();
        parser.words = text.split(" ");
        parser.schema = schema;
        return parser.next();
    }

    private Expression next() {
        String word = words[at++];
        if (word.equals("and")) { return Expressions.and(next(), next()); }
        if (word.equals("or")) { return Expressions.or(next(), next()); }
        if (word.equals("not")) { return Expressions.not(next()); }
        if (word.equals("TRUE")) { return Expressions.alwaysTrue(); }
        if (word.equals("FALSE")) { return Expressions.alwaysFalse(); }
        Expression.Operation op = Expression.Operation.valueOf(word);
        String name = words[at++];
        int count = Integer.parseInt(words[at++]);
        Type type = schema.caseInsensitiveFindField(name).type();
        if (type.typeId() == Type.TypeID.FLOAT) { type = Types.DoubleType.get(); }
        List values = new ArrayList();
        for (int i = 0; i < count; i++) { values.add(value(type, words[at++].substring(1))); }
        if (count == 0) { return Expressions.predicate(op, name); }
        if (op == Expression.Operation.IN || op == Expression.Operation.NOT_IN) {
            return Expressions.predicate(op, name, (Iterable) values);
        }
        return Expressions.predicate(op, name, values.get(0));
    }

    // Lines: data file, tab, delete files sorted and separated by |, tab, whether the residual is true.
    // The last line: scanned data manifests and delete manifests.
    public static String plan(Table table, Expression filter, String ref, long snapshot, boolean caseSensitive)
            throws Exception {
        TableScan scan = (TableScan) table.newScan();
        if (snapshot >= 0) { scan = (TableScan) scan.useSnapshot(snapshot); }
        if (!ref.isEmpty()) { scan = (TableScan) scan.useRef(ref); }
        InMemoryMetricsReporter reporter = new InMemoryMetricsReporter();
        scan = (TableScan) scan.caseSensitive(caseSensitive);
        scan = (TableScan) scan.metricsReporter(reporter);
        scan = (TableScan) scan.filter(filter);
        StringBuilder out = new StringBuilder();
        CloseableIterable tasks = scan.planFiles();
        Iterator each = tasks.iterator();
        while (each.hasNext()) {
            FileScanTask task = (FileScanTask) each.next();
            List deletes = new ArrayList();
            for (int i = 0; i < task.deletes().size(); i++) {
                deletes.add(((DeleteFile) task.deletes().get(i)).location());
            }
            Collections.sort(deletes);
            out.append(((DataFile) task.file()).location()).append("\t");
            out.append(String.join("|", deletes)).append("\t");
            String op;
            // Iceberg compares a null partition value with a prefix, which fails.
            try { op = task.residual().op().toString(); } catch (NullPointerException error) { op = "FAILS"; }
            // Without partition fields Iceberg returns the filter as it is; what is true for all files stays unsaid.
            if (((PartitionSpec) task.spec()).fields().isEmpty()) { op = "UNKNOWN"; }
            out.append(op).append("\n");
        }
        tasks.close();
        ScanReport report = reporter.scanReport();
        if (report == null) { return out.append("0 0").toString(); }
        ScanMetricsResult found = report.scanMetrics();
        out.append(found.scannedDataManifests() == null ? 0 : found.scannedDataManifests().value()).append(" ");
        out.append(found.scannedDeleteManifests() == null ? 0 : found.scannedDeleteManifests().value());
        return out.toString();
    }

    // Seconds of planning, and the number of files.
    public static String time(Table table, Expression filter) throws Exception {
        long began = System.nanoTime();
        long files = 0;
        CloseableIterable tasks = ((TableScan) ((TableScan) table.newScan()).filter(filter)).planFiles();
        Iterator each = tasks.iterator();
        while (each.hasNext()) { each.next(); files++; }
        tasks.close();
        return ((System.nanoTime() - began) / 1e9) + " " + files;
    }

    // For each row group of a Parquet file, 1 if Iceberg's filter on footers would read it.
    public static String rowGroups(Table table, Expression filter, String path) throws Exception {
        org.apache.iceberg.io.InputFile file = table.io().newInputFile(path);
        org.apache.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader reader =
            org.apache.iceberg.shaded.org.apache.parquet.hadoop.ParquetFileReader.open(
                org.apache.iceberg.shaded.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(
                    new org.apache.hadoop.fs.Path(path), new org.apache.hadoop.conf.Configuration()));
        org.apache.iceberg.parquet.ParquetMetricsRowGroupFilter rows =
            new org.apache.iceberg.parquet.ParquetMetricsRowGroupFilter(table.schema(), filter, true);
        StringBuilder out = new StringBuilder();
        List blocks = reader.getRowGroups();
        for (int i = 0; i < blocks.size(); i++) {
            out.append(rows.shouldRead(
                reader.getFooter().getFileMetaData().getSchema(),
                (org.apache.iceberg.shaded.org.apache.parquet.hadoop.metadata.BlockMetaData) blocks.get(i))
                ? "1" : "0");
        }
        reader.close();
        return out.toString();
    }
}
"""


@dataclass(frozen=True)
class Planned:
    """What Iceberg plans: data files with their delete files, those whose residual is true, and manifests read.
    `open`: the files whose residual it does not compute."""

    files: dict[str, tuple[str, ...]]
    decided: frozenset[str]
    manifests: tuple[int, int]
    open: frozenset[str] = frozenset()


class IcebergPlanner:
    def __init__(self, spark: SparkSession) -> None:
        jvm: Any = spark._jvm
        context: Any = spark.sparkContext
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.Thread.currentThread().getContextClassLoader())
        compiler.cook(_JAVA)
        self.jvm = jvm
        self._class = compiler.getClassLoader().loadClass("PlannerOracle")
        self.tables = jvm.org.apache.iceberg.hadoop.HadoopTables(context._jsc.hadoopConfiguration())
        self._methods = {
            method.getName(): method for method in self._class.getDeclaredMethods() if method.getModifiers() & 1
        }
        self._gateway = context._gateway

    def call(self, name: str, *arguments: Any) -> Any:
        array = self._gateway.new_array(self.jvm.java.lang.Object, len(arguments))
        for place, argument in enumerate(arguments):
            array[place] = self.jvm.java.lang.Long(argument.value) if isinstance(argument, Long) else argument
        return self._methods[name].invoke(None, array)

    def create(self, schema: str, spec: str, location: str, properties: dict[str, str]) -> Any:
        jvm = self.jvm
        parsed = jvm.org.apache.iceberg.SchemaParser.fromJson(schema)
        bound = jvm.org.apache.iceberg.PartitionSpecParser.fromJson(parsed, spec)
        given = jvm.java.util.HashMap()
        for key, value in properties.items():
            given.put(key, value)
        return self.tables.create(parsed, bound, given, location)

    def plan(
        self,
        table: Any,
        expression: str,
        *,
        schema: Any = None,
        ref: str = "",
        snapshot: int = -1,
        case_sensitive: bool = True,
    ) -> Planned:
        filter_ = self.call("expression", schema or table.schema(), expression)
        *lines, last = str(self.call("plan", table, filter_, ref, Long(snapshot), case_sensitive)).split("\n")
        rows = [line.split("\t") for line in lines]
        data, deletes = last.split(" ")
        return Planned(
            {path: tuple(each for each in deletes.split("|") if each) for path, deletes, _ in rows},
            frozenset(path for path, _, op in rows if op == "TRUE"),
            (int(data), int(deletes)),
            frozenset(path for path, _, op in rows if op in ("FAILS", "UNKNOWN")),
        )


@dataclass(frozen=True)
class Long:
    """A Java long: py4j makes ints of small numbers."""

    value: int
