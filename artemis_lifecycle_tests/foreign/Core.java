import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.function.Function;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.*;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.data.GenericFileWriterFactory;
import org.apache.iceberg.data.GenericRecord;
import org.apache.iceberg.data.IcebergGenerics;
import org.apache.iceberg.data.InternalRecordWrapper;
import org.apache.iceberg.data.Record;
import org.apache.iceberg.deletes.BaseDVFileWriter;
import org.apache.iceberg.encryption.EncryptedFiles;
import org.apache.iceberg.expressions.Expressions;
import org.apache.iceberg.hadoop.HadoopFileIO;
import org.apache.iceberg.io.CloseableIterable;
import org.apache.iceberg.io.DataWriter;
import org.apache.iceberg.io.FileIO;
import org.apache.iceberg.io.LocationProvider;
import org.apache.iceberg.io.OutputFileFactory;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.puffin.Blob;
import org.apache.iceberg.puffin.Puffin;
import org.apache.iceberg.puffin.PuffinWriter;
import org.apache.iceberg.types.Type;
import org.apache.iceberg.types.Types;
import org.apache.iceberg.view.ViewBuilder;

/** Iceberg's core without Spark: what other writers and tools do, and what a reader of a metadata file finds. Janino
 * compiles it: no lambdas, no inferred types. Files are given as lines of path, bytes, records. */
public class Core {
    private final Configuration conf;
    private final FileIO io;
    private final Map lists = new HashMap();
    private final Map manifests = new HashMap();

    public Core(Configuration conf) {
        this.conf = conf;
        this.io = new HadoopFileIO(conf);
    }

    public JdbcCatalog open(String name, Map options) {
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.setConf(conf);
        catalog.initialize(name, options);
        return catalog;
    }

    public void forget() {
        lists.clear();
        manifests.clear();
    }

    private TableIdentifier in(String name) {
        return TableIdentifier.of(Namespace.of(new String[] {"db"}), name);
    }

    // --- reading ---------------------------------------------------------------------------------------------------

    private Table at(String location) {
        return new BaseTable(new StaticTableOperations(location, io), location);
    }

    /** Lines: S, snapshot, manifest list, its manifests; M, manifest, its live files, each with its first row id,
     * records, content and sequence number. A level that cannot be read is "!". */
    public String describe(String location) {
        Table table = at(location);
        StringBuilder out = new StringBuilder();
        Map seen = new HashMap();
        for (Iterator each = table.snapshots().iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            out.append("S\t").append(snapshot.snapshotId()).append("\t").append(snapshot.manifestListLocation());
            try {
                List found = (List) lists.get(snapshot.manifestListLocation());
                if (found == null) {
                    found = snapshot.allManifests(io);
                    lists.put(snapshot.manifestListLocation(), found);
                }
                for (Iterator of = found.iterator(); of.hasNext();) {
                    ManifestFile manifest = (ManifestFile) of.next();
                    seen.put(manifest.path(), manifest);
                    out.append("\t").append(manifest.path());
                }
            } catch (RuntimeException error) {
                out.append("\t!");
            }
            out.append("\n");
        }
        for (Iterator each = seen.values().iterator(); each.hasNext();) {
            ManifestFile manifest = (ManifestFile) each.next();
            // The same manifest in another list may start its row ids elsewhere.
            String key = manifest.path() + "|" + manifest.firstRowId();
            if (!manifests.containsKey(key)) {
                manifests.put(key, filesOf(table, manifest));
            }
            out.append("M\t").append(manifest.path()).append(manifests.get(key)).append("\n");
        }
        return out.toString();
    }

    private String filesOf(Table table, ManifestFile manifest) {
        StringBuilder out = new StringBuilder();
        try {
            CloseableIterable reader = manifest.content() == ManifestContent.DATA
                ? (CloseableIterable) ManifestFiles.read(manifest, io, table.specs())
                : (CloseableIterable) ManifestFiles.readDeleteManifest(manifest, io, table.specs());
            for (Iterator each = reader.iterator(); each.hasNext();) {
                ContentFile file = (ContentFile) each.next();
                Long first = file.firstRowId();
                out.append("\t").append(file.location()).append("|").append(first == null ? -1L : first.longValue());
                out.append("|").append(file.recordCount()).append("|").append(file.content());
                out.append("|").append(file.dataSequenceNumber()).append("|").append(file.fileSizeInBytes());
            }
            reader.close();
        } catch (Exception error) {
            return "\t!";
        }
        return out.toString();
    }

    /** Rows as JSON, one a line, in the snapshot's schema or in the table's current one. */
    public String rows(String location, long snapshot, boolean current) throws IOException {
        Table table = at(location);
        IcebergGenerics.ScanBuilder scan = IcebergGenerics.read(table).useSnapshot(snapshot);
        if (current) {
            scan = scan.project(table.schema());
        }
        CloseableIterable rows = scan.build();
        StringBuilder out = new StringBuilder();
        try {
            for (Iterator each = rows.iterator(); each.hasNext();) {
                Record row = (Record) each.next();
                List fields = row.struct().fields();
                out.append("{");
                for (int i = 0; i < fields.size(); i++) {
                    Object value = row.get(i);
                    out.append(i == 0 ? "" : ",").append("\"").append(((Types.NestedField) fields.get(i)).name());
                    out.append("\":");
                    out.append(value == null || value instanceof Long ? String.valueOf(value) : "\"" + value + "\"");
                }
                out.append("}\n");
            }
        } finally {
            rows.close();
        }
        return out.toString();
    }

    // --- objects of a catalog --------------------------------------------------------------------------------------

    private Schema schema() {
        return new Schema(new Types.NestedField[] {
            Types.NestedField.optional(1, "id", Types.LongType.get()),
            Types.NestedField.optional(2, "name", Types.StringType.get())});
    }

    public void create(JdbcCatalog catalog, String name, String location, int version) {
        org.apache.iceberg.catalog.Catalog.TableBuilder table = catalog.buildTable(in(name), schema())
            .withProperty("format-version", String.valueOf(version)).withProperty("write.delete.mode", "merge-on-read");
        (location == null ? table : table.withLocation(location)).create();
    }

    public void makeNamespace(JdbcCatalog catalog) {
        catalog.createNamespace(Namespace.of(new String[] {"db"}), Collections.emptyMap());
    }

    public Table load(JdbcCatalog catalog, String name) {
        return catalog.loadTable(in(name));
    }

    public void rename(JdbcCatalog catalog, String name, String to) {
        catalog.renameTable(in(name), in(to));
    }

    public void drop(JdbcCatalog catalog, String name, boolean purge) {
        catalog.dropTable(in(name), purge);
    }

    public void register(JdbcCatalog catalog, String name, String location) {
        catalog.registerTable(in(name), location);
    }

    public void view(JdbcCatalog catalog, String name, String location, boolean replace, String query) {
        ViewBuilder view = catalog.buildView(in(name));
        view.withSchema(schema());
        view.withDefaultNamespace(Namespace.of(new String[] {"db"}));
        view.withQuery("spark", query);
        if (location != null) {
            view.withLocation(location);
        }
        if (replace) {
            view.createOrReplace();
        } else {
            view.create();
        }
    }

    public void dropView(JdbcCatalog catalog, String name) {
        catalog.dropView(in(name));
    }

    // --- writers ---------------------------------------------------------------------------------------------------

    private List files(Table table, String lines) {
        List found = new ArrayList();
        for (String line : lines.split("\n")) {
            String[] parts = line.split("\t");
            found.add(DataFiles.builder(table.spec()).withPath(parts[0]).withFormat("parquet")
                .withFileSizeInBytes(Long.parseLong(parts[1])).withRecordCount(Long.parseLong(parts[2])).build());
        }
        return found;
    }

    private DeleteFile deletes(Table table, String line, boolean byEquality) {
        String[] parts = line.split("\t");
        FileMetadata.Builder file = FileMetadata.deleteFileBuilder(table.spec()).withPath(parts[0]).withFormat("parquet")
            .withFileSizeInBytes(Long.parseLong(parts[1])).withRecordCount(Long.parseLong(parts[2]));
        return (byEquality ? file.ofEqualityDeletes(new int[] {1}) : file.ofPositionDeletes()).build();
    }

    /** One commit of rows, which are lines of values between tabs (\\N is null) in the order of the columns: an append,
     * or in the place of all rows. A data file for each partition, by Iceberg's own writer; after a line of a form feed
     * another one. */
    public void write(Table table, String branch, String rows, boolean replace) throws IOException {
        List columns = table.schema().columns();
        InternalRecordWrapper wrapper = new InternalRecordWrapper(table.schema().asStruct());
        Map writers = new LinkedHashMap();
        int part = 0;
        for (String line : rows.split("\n")) {
            if (line.equals("\f")) {
                part++;
                continue;
            }
            String[] values = line.split("\t", -1);
            GenericRecord row = GenericRecord.create(table.schema());
            for (int i = 0; i < values.length; i++) {
                row.set(i, value(((Types.NestedField) columns.get(i)).type(), values[i]));
            }
            PartitionKey key = new PartitionKey(table.spec(), table.schema());
            key.partition(wrapper.wrap(row));
            List file = Arrays.asList(new Object[] {Integer.valueOf(part), key});
            if (!writers.containsKey(file)) {
                writers.put(file, writer(table, key, writers.size() + 1));
            }
            ((DataWriter) writers.get(file)).write(row);
        }
        List files = new ArrayList();
        for (Iterator each = writers.values().iterator(); each.hasNext();) {
            DataWriter writer = (DataWriter) each.next();
            writer.close();
            files.add(writer.toDataFile());
        }
        if (replace) {
            OverwriteFiles overwrite = table.newOverwrite().overwriteByRowFilter(Expressions.alwaysTrue());
            overwrite.toBranch(branch);
            for (Object each : files) {
                overwrite.addFile((DataFile) each);
            }
            overwrite.commit();
        } else {
            AppendFiles append = table.newAppend();
            append.toBranch(branch);
            for (Object each : files) {
                append.appendFile((DataFile) each);
            }
            append.commit();
        }
    }

    private int written = 0;

    private DataWriter writer(Table table, PartitionKey key, int number) {
        // In the order of their names, files are in that of their commits.
        String name = String.format("00000-%07d-%02d-", ++written, number) + UUID.randomUUID() + "-0-00001.parquet";
        LocationProvider places = table.locationProvider();
        boolean apart = table.spec().isPartitioned();
        String place = apart ? places.newDataLocation(table.spec(), key, name) : places.newDataLocation(name);
        return new GenericFileWriterFactory.Builder(table).build().newDataWriter(
            EncryptedFiles.plainAsEncryptedOutput(table.io().newOutputFile(place)), table.spec(),
            apart ? key.copy() : null);
    }

    private Object value(Type type, String text) {
        if (text.equals("\\N")) {
            return null;
        }
        switch (type.typeId()) {
            case INTEGER: return Integer.valueOf(text);
            case LONG: return Long.valueOf(text);
            case STRING: return text;
            default: throw new IllegalArgumentException("No value of " + type + " is written here");
        }
    }

    public void append(Table table, String branch, String lines) {
        AppendFiles append = table.newAppend();
        append.toBranch(branch);
        for (Object each : files(table, lines)) {
            append.appendFile((DataFile) each);
        }
        append.commit();
    }

    public void overwrite(Table table, String lines) {
        OverwriteFiles overwrite = table.newOverwrite().overwriteByRowFilter(Expressions.alwaysTrue());
        for (Object each : files(table, lines)) {
            overwrite.addFile((DataFile) each);
        }
        overwrite.commit();
    }

    public void deleteRows(Table table, String branch, String line, boolean byEquality) {
        RowDelta delta = table.newRowDelta().addDeletes(deletes(table, line, byEquality));
        delta.toBranch(branch);
        delta.commit();
    }

    /** By a deletion vector, for a data file that has none. */
    public void deleteByVector(Table table, String branch, String path, int records) throws IOException {
        OutputFileFactory names = OutputFileFactory.builderFor(table, 1, 1L).format(FileFormat.PUFFIN).build();
        BaseDVFileWriter writer = new BaseDVFileWriter(names, new Function() {
            public Object apply(Object path) { return null; }
        });
        for (int i = 0; i < records; i++) {
            writer.delete(path, i, table.spec(), null);
        }
        writer.close();
        RowDelta delta = table.newRowDelta().validateFromSnapshot(table.snapshot(branch).snapshotId());
        for (Object each : writer.result().deleteFiles()) {
            delta.addDeletes((DeleteFile) each);
        }
        delta.toBranch(branch);
        delta.commit();
    }

    /** Lines of a branch's data files: path, bytes, records, number of its files of position deletes. */
    public String scan(Table table, String branch) throws IOException {
        StringBuilder out = new StringBuilder();
        CloseableIterable tasks = table.newScan().useRef(branch).planFiles();
        for (Iterator each = tasks.iterator(); each.hasNext();) {
            FileScanTask task = (FileScanTask) each.next();
            DataFile file = (DataFile) task.file();
            out.append(file.location()).append("\t").append(file.fileSizeInBytes()).append("\t");
            int positions = 0;
            for (Object deletes : task.deletes()) {
                positions += ((DeleteFile) deletes).content() == FileContent.POSITION_DELETES ? 1 : 0;
            }
            out.append(file.recordCount()).append("\t").append(positions).append("\n");
        }
        tasks.close();
        return out.toString();
    }

    public void compact(Table table, String lines) throws IOException {
        RewriteFiles rewrite = table.newRewrite().validateFromSnapshot(table.currentSnapshot().snapshotId());
        CloseableIterable tasks = table.newScan().planFiles();
        for (Iterator each = tasks.iterator(); each.hasNext();) {
            rewrite.deleteFile((DataFile) ((FileScanTask) each.next()).file());
        }
        tasks.close();
        for (Object each : files(table, lines)) {
            rewrite.addFile((DataFile) each);
        }
        rewrite.commit();
    }

    public void stageAndPick(Table table, String lines, String wap, String appended) {
        AppendFiles staged = table.newAppend();
        staged.stageOnly();
        staged.set("wap.id", wap);
        staged.appendFile((DataFile) files(table, lines).get(0)).commit();
        table.refresh();
        Snapshot newest = null;
        for (Iterator each = table.snapshots().iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            newest = wap.equals(snapshot.summary().get("wap.id")) ? snapshot : newest;
        }
        if (appended != null) {
            append(table, "main", appended);
        }
        table.manageSnapshots().cherrypick(newest.snapshotId()).commit();
    }

    public void addColumn(Table table, String name) {
        table.updateSchema().addColumn(name, Types.StringType.get()).commit();
    }

    public void dropColumn(Table table, String name) {
        table.updateSchema().deleteColumn(name).commit();
    }

    /** Lines of the current schema: field id, name. */
    public String columns(Table table) {
        StringBuilder out = new StringBuilder();
        for (Object each : table.schema().columns()) {
            Types.NestedField field = (Types.NestedField) each;
            out.append(field.fieldId()).append("\t").append(field.name()).append("\n");
        }
        return out.toString();
    }

    // --- maintenance -----------------------------------------------------------------------------------------------

    public void rewriteManifests(Table table) {
        table.rewriteManifests().clusterBy(new Function() {
            public Object apply(Object file) { return "all"; }
        }).commit();
    }

    public void statistics(Table table, String path) throws IOException {
        Snapshot snapshot = table.currentSnapshot();
        PuffinWriter writer = Puffin.write(table.io().newOutputFile(path)).createdBy("a test").build();
        writer.add(new Blob("a-test", Collections.singletonList(Integer.valueOf(1)), snapshot.snapshotId(),
            snapshot.sequenceNumber(), ByteBuffer.wrap(new byte[] {1, 2, 3})));
        writer.finish();
        writer.close();
        table.updateStatistics().setStatistics(new GenericStatisticsFile(snapshot.snapshotId(), path, writer.fileSize(),
            writer.footerSize(), Collections.emptyList())).commit();
    }

    /** The snapshots of the line, or all that are older than now. */
    public void expire(Table table, String ids, boolean files, boolean metadata) {
        ExpireSnapshots expire = table.expireSnapshots();
        if (ids.isEmpty()) {
            expire = expire.expireOlderThan(System.currentTimeMillis()).retainLast(1);
        } else {
            for (String each : ids.split(",")) {
                expire = expire.expireSnapshotId(Long.parseLong(each));
            }
        }
        expire.cleanExpiredFiles(files).cleanExpiredMetadata(metadata).commit();
    }

    public void reference(Table table, String name, long snapshot, boolean branch) {
        ManageSnapshots change = table.manageSnapshots();
        (branch ? change.createBranch(name, snapshot) : change.createTag(name, snapshot)).commit();
    }

    public void unreference(Table table, String name, boolean branch) {
        ManageSnapshots change = table.manageSnapshots();
        (branch ? change.removeBranch(name) : change.removeTag(name)).commit();
    }

    public void setCurrent(Table table, long snapshot, boolean back) {
        ManageSnapshots change = table.manageSnapshots();
        (back ? change.rollbackTo(snapshot) : change.setCurrentSnapshot(snapshot)).commit();
    }

    public void setLocation(Table table, String location) {
        table.updateLocation().setLocation(location).commit();
    }

    public void setProperty(Table table, String key, String value) {
        table.updateProperties().set(key, value).commit();
    }
}
