import java.nio.file.Files;
import java.nio.file.Paths;
import java.sql.Timestamp;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import org.apache.paimon.CoreOptions;
import org.apache.paimon.catalog.FileSystemCatalog;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.consumer.Consumer;
import org.apache.paimon.data.BinaryRow;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.operation.LocalOrphanFilesClean;
import org.apache.paimon.options.ExpireConfig;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.stats.Statistics;
import org.apache.paimon.table.BucketMode;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.FileStoreTableFactory;
import org.apache.paimon.table.sink.CommitMessage;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.tag.TagTimeExpire;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypeJsonParser;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.RowKind;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.CloseableIterator;
import org.apache.paimon.utils.ProcedureUtils;
import org.apache.paimon.utils.TypeUtils;

/**
 * What the tests ask of Paimon itself. Each call opens its table anew by its folder, so that nothing is remembered
 * between two, and a copy of the folder is a table of its own. Compiled by Janino: no lambdas, no inferred types.
 */
public class PaimonCalls {
    private long commits = 0;

    public PaimonCalls() throws Exception {
        // The one thing that Paimon looks up by the thread's class loader and keeps.
        Thread thread = Thread.currentThread();
        ClassLoader before = thread.getContextClassLoader();
        thread.setContextClassLoader(getClass().getClassLoader());
        try {
            Class.forName("org.apache.paimon.fileindex.FileIndexerFactoryUtils");
        } finally {
            thread.setContextClassLoader(before);
        }
    }

    /** Makes the table `db.name` in a file system catalog, with columns of types as SQL has them; returns its folder. */
    public String create(
            String warehouse, String db, String name, List columns, List partitionKeys, List primaryKey, Map options)
            throws Exception {
        FileSystemCatalog catalog = new FileSystemCatalog(LocalFileIO.create(), new Path(warehouse));
        Schema.Builder schema = Schema.newBuilder();
        for (int i = 0; i < columns.size(); i++) {
            List column = (List) columns.get(i);
            schema.column((String) column.get(0), DataTypeJsonParser.parseAtomicTypeSQLString((String) column.get(1)));
        }
        schema.partitionKeys(partitionKeys);
        schema.primaryKey(primaryKey);
        schema.options(options);
        Identifier identifier = Identifier.create(db, name);
        catalog.createDatabase(db, true);
        catalog.createTable(identifier, schema.build(), false);
        return catalog.getTableLocation(identifier).toUri().getPath();
    }

    /** Sets options (null as value removes one), and adds columns: a new schema file. */
    public void alter(String warehouse, String db, String name, Map options, List columns) throws Exception {
        FileSystemCatalog catalog = new FileSystemCatalog(LocalFileIO.create(), new Path(warehouse));
        List changes = new ArrayList();
        for (Iterator each = options.entrySet().iterator(); each.hasNext();) {
            Map.Entry option = (Map.Entry) each.next();
            String key = (String) option.getKey();
            String value = (String) option.getValue();
            changes.add(value == null ? SchemaChange.removeOption(key) : SchemaChange.setOption(key, value));
        }
        for (int i = 0; i < columns.size(); i++) {
            changes.add(SchemaChange.addColumn((String) columns.get(i), DataTypes.STRING()));
        }
        catalog.alterTable(Identifier.create(db, name), changes, false);
    }

    /** The table in a folder, on a branch, under more options than it has itself. */
    public FileStoreTable open(String folder, String branch, Map options) {
        FileStoreTable table = FileStoreTableFactory.create(LocalFileIO.create(), new Path(folder));
        return (branch.equals("main") ? table : table.switchToBranch(branch)).copy(options);
    }

    /** Commits rows of [kind, value, …], where kind is +I, -U, +U or -D and values are numbers of a BIGINT, texts of any
     * type, or null; returns the latest snapshot's number. With
     * `compact` the writer compacts where it sees fit, with `full` all of each bucket that they are in; with `expire` the commit expires snapshots by the table's
     * options; with `overwrite` the rows replace all that the table, or each partition that they are in, has. */
    public long write(
            String folder, String branch, List rows, boolean compact, boolean full, boolean expire, boolean overwrite,
            Map options) throws Exception {
        Map writing = new HashMap(options);
        writing.put("write-only", compact ? "false" : "true");
        Map committing = new HashMap(options);
        committing.put("write-only", expire ? "false" : "true");
        return commit(folder, branch, rows, full, overwrite, writing, committing);
    }

    private long commit(
            String folder, String branch, List rows, boolean full, boolean overwrite, Map writing, Map committing)
            throws Exception {
        FileStoreTable table = open(folder, branch, writing);
        String user = "tests";
        TableWriteImpl write = table.newWrite(user);
        String spilled = Files.createTempDirectory("paimon").toString();
        IOManager spill = IOManager.create(spilled);
        try {
            write.withIOManager(spill);
            write.withIgnorePreviousFiles(overwrite);
            Map buckets = new LinkedHashMap();
            boolean dynamic = table.bucketMode() == BucketMode.HASH_DYNAMIC;
            for (int i = 0; i < rows.size(); i++) {
                GenericRow row = row((List) rows.get(i), table.rowType());
                if (dynamic) {
                    int bucket = (int) (row.getLong(0) % 2);
                    write.write(row, bucket);
                    buckets.put(write.getPartition(row).copy() + "/" + bucket,
                            new Object[] {write.getPartition(row).copy(), Integer.valueOf(bucket)});
                } else {
                    write.write(row);
                    BinaryRow partition = write.getPartition(row).copy();
                    int bucket = write.getBucket(row);
                    buckets.put(partition + "/" + bucket, new Object[] {partition, Integer.valueOf(bucket)});
                }
            }
            if (full) {
                for (Iterator each = buckets.values().iterator(); each.hasNext();) {
                    Object[] bucket = (Object[]) each.next();
                    write.compact((BinaryRow) bucket[0], ((Integer) bucket[1]).intValue(), true);
                }
            }
            long number = System.nanoTime() + (++commits);
            List messages = write.prepareCommit(true, number);
            FileStoreTable committer = open(folder, branch, committing);
            TableCommitImpl commit = committer.newCommit(user);
            try {
                commit.ignoreEmptyCommit(false);
                if (overwrite) {
                    commit.withOverwrite(Collections.emptyMap());
                }
                commit.commit(number, messages);
            } finally {
                commit.close();
            }
        } finally {
            write.close();
            spill.close();
            Files.deleteIfExists(Paths.get(spilled, new String[0]));
        }
        Long latest = table.snapshotManager().latestSnapshotIdFromFileSystem();
        return latest.longValue();
    }

    private GenericRow row(List values, RowType type) {
        GenericRow row = new GenericRow(type.getFieldCount());
        row.setRowKind(RowKind.fromShortString((String) values.get(0)));
        for (int i = 1; i < values.size(); i++) {
            Object value = values.get(i);
            if (value instanceof Number) {
                row.setField(i - 1, Long.valueOf(((Number) value).longValue()));
            } else if (value != null) {
                row.setField(i - 1, TypeUtils.castFromString((String) value, type.getTypeAt(i - 1)));
            }
        }
        return row;
    }

    /** The rows that a scan reads under options such as scan.snapshot-id or scan.tag-name, with texts of all that is no BIGINT. */
    public List read(String folder, String branch, Map options) throws Exception {
        FileStoreTable table = open(folder, branch, options);
        List rows = new ArrayList();
        List splits = table.newReadBuilder().newScan().plan().splits();
        for (int i = 0; i < splits.size(); i++) {
            CloseableIterator found =
                    table.newReadBuilder().newRead().createReader((Split) splits.get(i)).toCloseableIterator();
            try {
                while (found.hasNext()) {
                    InternalRow row = (InternalRow) found.next();
                    List values = new ArrayList();
                    for (int column = 0; column < row.getFieldCount(); column++) {
                        DataType type = table.rowType().getTypeAt(column);
                        Object value = InternalRow.createFieldGetter(type, column).getFieldOrNull(row);
                        values.add(value == null || value instanceof Long ? value : value.toString());
                    }
                    rows.add(values);
                }
            } finally {
                found.close();
            }
        }
        return rows;
    }

    /** Commits statistics of the latest snapshot, as ANALYZE TABLE does. */
    public void analyze(String folder, String branch) throws Exception {
        FileStoreTable table = open(folder, branch, Collections.emptyMap());
        long id = table.snapshotManager().latestSnapshotIdFromFileSystem().longValue();
        TableCommitImpl commit = table.newCommit("tests");
        try {
            commit.updateStatistics(new Statistics(id, table.schema().id(), Long.valueOf(1), Long.valueOf(1)));
        } finally {
            commit.close();
        }
    }

    /** Drops a partition, as ALTER TABLE … DROP PARTITION does, or all rows where `partition` is empty. */
    public void truncate(String folder, String branch, Map partition) throws Exception {
        FileStoreTable table = open(folder, branch, Collections.singletonMap("write-only", "true"));
        TableCommitImpl commit = table.newCommit("tests");
        try {
            if (partition.isEmpty()) {
                commit.truncateTable();
            } else {
                commit.truncatePartitions(Collections.singletonList(partition));
            }
        } finally {
            commit.close();
        }
    }

    /** Rewrites manifests into few. */
    public void compactManifests(String folder, String branch) throws Exception {
        TableCommitImpl commit = open(folder, branch, Collections.emptyMap()).newCommit("tests");
        try {
            commit.compactManifests();
        } finally {
            commit.close();
        }
    }

    /** Tags a snapshot. `retainedMillis` below 0: for ever. */
    public void tag(String folder, String branch, String name, long snapshot, long retainedMillis) {
        FileStoreTable table = open(folder, branch, Collections.emptyMap());
        if (retainedMillis < 0) {
            table.createTag(name, snapshot);
        } else {
            table.createTag(name, snapshot, Duration.ofMillis(retainedMillis));
        }
    }

    public void deleteTag(String folder, String branch, String name) {
        open(folder, branch, Collections.emptyMap()).deleteTag(name);
    }

    /** Makes a branch from a tag, or an empty one where `tag` is null. */
    public void branch(String folder, String name, String tag) {
        FileStoreTable table = open(folder, "main", Collections.emptyMap());
        if (tag == null) {
            table.createBranch(name);
        } else {
            table.createBranch(name, tag);
        }
    }

    public void deleteBranch(String folder, String name) {
        open(folder, "main", Collections.emptyMap()).deleteBranch(name);
    }

    public void fastForward(String folder, String name) {
        open(folder, "main", Collections.emptyMap()).fastForward(name);
    }

    /** Sets the next snapshot that a consumer reads. */
    public void consume(String folder, String branch, String consumer, long next) {
        open(folder, branch, Collections.emptyMap()).consumerManager().resetConsumer(consumer, new Consumer(next));
    }

    public void deleteConsumer(String folder, String branch, String consumer) {
        open(folder, branch, Collections.emptyMap()).consumerManager().deleteConsumer(consumer);
    }

    /** The procedure `expire_snapshots`: null is an argument that is not given. */
    public int expire(
            String folder, String branch, Integer retainMax, Integer retainMin, Long olderThan, Integer maxDeletes,
            Map options) {
        FileStoreTable table = open(folder, branch, options);
        // In the zone of this JVM, as the procedure reads it.
        String before = olderThan == null ? null : new Timestamp(olderThan.longValue()).toString();
        ExpireConfig.Builder config = ProcedureUtils.fillInSnapshotOptions(
                table.store().options(), retainMax, retainMin, before, maxDeletes);
        return table.newExpireSnapshots().config(config.build()).expire();
    }

    /** What a writer does to snapshots at the end of each commit: where changelogs are decoupled, they live on. */
    public int expireAsWriter(String folder, String branch, Map options) {
        FileStoreTable table = open(folder, branch, options);
        return table.newExpireSnapshots().config(table.store().options().expireConfig()).expire();
    }

    /** What a writer does to changelogs at the end of each commit, where they are decoupled. */
    public int expireChangelogs(String folder, String branch, Map options) {
        FileStoreTable table = open(folder, branch, options);
        if (!table.store().options().changelogLifecycleDecoupled()) {
            return 0;
        }
        return table.newExpireChangelog().config(table.store().options().expireConfig()).expire();
    }

    /** Automatic tags, as the end of a commit makes and expires them. */
    public void autoTags(String folder, String branch, Map options) {
        open(folder, branch, options).newTagAutoManager().run();
    }

    /** The procedure `expire_tags`; `olderThan` may be null. Returns the names of the tags that it deleted. */
    public List expireTags(String folder, String branch, Long olderThan) {
        Map options = Collections.singletonMap(CoreOptions.TAG_TIME_EXPIRE_ENABLED.key(), "true");
        TagTimeExpire expire = open(folder, branch, options).newTagAutoManager().getTagTimeExpire();
        if (olderThan != null) {
            expire.withOlderThanTime(new Timestamp(olderThan.longValue()).toLocalDateTime());
        }
        return expire.expire();
    }

    /** The procedure `remove_orphan_files` of one table. Returns the paths that it removed, or would. */
    public List removeOrphans(String folder, long olderThanMillis, boolean dryRun) throws Exception {
        FileStoreTable table = open(folder, "main", Collections.emptyMap());
        List paths = new LocalOrphanFilesClean(table, olderThanMillis, dryRun).clean().getDeletedFilesPath();
        List removed = new ArrayList();
        for (int i = 0; i < paths.size(); i++) {
            removed.add(((Path) paths.get(i)).toUri().getPath());
        }
        return removed;
    }

    public void rollbackTo(String folder, String branch, long snapshot) {
        open(folder, branch, Collections.emptyMap()).rollbackTo(snapshot);
    }

    public void rollbackToTag(String folder, String branch, String tag) {
        open(folder, branch, Collections.emptyMap()).rollbackTo(tag);
    }
}
