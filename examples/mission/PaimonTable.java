import java.util.Collections;
import java.util.List;
import java.util.Map;

import org.apache.paimon.catalog.FileSystemCatalog;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.fs.Path;
import org.apache.paimon.fs.local.LocalFileIO;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.TableCommitImpl;
import org.apache.paimon.table.sink.TableWriteImpl;
import org.apache.paimon.table.source.Split;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.utils.CloseableIterator;

/** A Paimon table of the demo: passes of satellites by their number, in one bucket. For Janino: no lambdas, no inferred types. */
public class PaimonTable {
    private final FileStoreTable table;
    private long commits = 0;

    public PaimonTable(String warehouse, String database, String name, Map options) throws Exception {
        FileSystemCatalog catalog = new FileSystemCatalog(LocalFileIO.create(), new Path(warehouse));
        Schema.Builder schema = Schema.newBuilder();
        schema.column("pass", DataTypes.BIGINT());
        schema.column("station", DataTypes.STRING());
        schema.primaryKey(Collections.singletonList("pass"));
        schema.options(options);
        Identifier identifier = Identifier.create(database, name);
        catalog.createDatabase(database, true);
        catalog.createTable(identifier, schema.build(), true);
        table = (FileStoreTable) catalog.getTable(identifier);
    }

    /** Commits passes `from` to `until` (exclusive) at a station, and compacts: two snapshots. */
    public void write(long from, long until, String station, String spillFolder) throws Exception {
        // The table is write-only, so that no commit expires snapshots; this writer compacts all the same.
        FileStoreTable compacting = table.copy(Collections.singletonMap("write-only", "false"));
        TableWriteImpl write = compacting.newWrite("demo");
        IOManager spill = IOManager.create(spillFolder);
        try {
            write.withIOManager(spill);
            GenericRow row = null;
            for (long pass = from; pass < until; pass++) {
                row = GenericRow.of(new Object[] {Long.valueOf(pass), BinaryString.fromString(station)});
                write.write(row);
            }
            write.compact(write.getPartition(row).copy(), write.getBucket(row), true);
            long number = ++commits;
            List messages = write.prepareCommit(true, number);
            TableCommitImpl commit = table.newCommit("demo");
            try {
                commit.commit(number, messages);
            } finally {
                commit.close();
            }
        } finally {
            write.close();
            spill.close();
        }
    }

    /** Tags a snapshot for ever. */
    public void tag(String name, long snapshot) {
        table.createTag(name, snapshot);
    }

    /** Returns how many rows a scan with this option reads, and the sum of their hashes, as "rows:sum". */
    public String fingerprint(String option, String value) throws Exception {
        FileStoreTable then = table.copy(Collections.singletonMap(option, value));
        long rows = 0;
        long sum = 0;
        List splits = then.newReadBuilder().newScan().plan().splits();
        for (int i = 0; i < splits.size(); i++) {
            CloseableIterator found =
                    then.newReadBuilder().newRead().createReader((Split) splits.get(i)).toCloseableIterator();
            try {
                while (found.hasNext()) {
                    InternalRow row = (InternalRow) found.next();
                    rows++;
                    sum += 31 * row.getLong(0) + row.getString(1).hashCode();
                }
            } finally {
                found.close();
            }
        }
        return rows + ":" + sum;
    }
}
