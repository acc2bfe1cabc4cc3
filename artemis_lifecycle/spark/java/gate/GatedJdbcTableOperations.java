package org.apache.iceberg.jdbc;

import artemis.lifecycle.LineageDefaults;
import artemis.lifecycle.LineageGate;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.io.FileIO;

/**
 * Iceberg's own operations of a table in a JdbcCatalog, whose commits ask the lineage gate twice: before anything is
 * written, so that a refused commit leaves no metadata file, and for exactly the metadata file that the swap is for.
 */
public class GatedJdbcTableOperations extends JdbcTableOperations {
    private final TableIdentifier table;
    private final LineageGate gate;
    private final LineageDefaults defaults;

    public GatedJdbcTableOperations(
            JdbcClientPool connections,
            FileIO io,
            String catalog,
            TableIdentifier table,
            Map<String, String> properties,
            boolean hasViews,
            LineageGate gate,
            LineageDefaults defaults) {
        super(
            connections, io, catalog, table, properties,
            hasViews ? JdbcUtil.SchemaVersion.V1 : JdbcUtil.SchemaVersion.V0);
        this.table = table;
        this.gate = gate;
        this.defaults = defaults;
    }

    @Override
    public void doCommit(TableMetadata base, TableMetadata metadata) {
        super.doCommit(base, isRegistered(base, metadata) ? metadata : this.defaults.in(base, metadata));
    }

    @Override
    protected String writeNewMetadataIfRequired(boolean newTable, TableMetadata metadata) {
        // `commit` has just compared the current metadata with the base of the swap.
        TableMetadata base = newTable ? null : this.current();
        String from = base == null ? null : base.metadataFileLocation();
        // The defaults are in the metadata by now; a registered file stays as it is.
        List<Snapshot> snapshots = LineageDefaults.newSnapshots(base, metadata);
        this.gate.require(this.table, snapshots, LineageDefaults.NONE, from, null);
        String location = super.writeNewMetadataIfRequired(newTable, metadata);
        try {
            this.gate.require(this.table, snapshots, LineageDefaults.NONE, from, location);
        } catch (RuntimeException refused) {
            if (!isRegistered(base, metadata)) {
                this.io().deleteFile(location);
            }
            throw refused;
        }
        return location;
    }

    /**
     * Called for each commit inside a transaction. A refusal here, and not at the transaction's end, makes Spark delete
     * the data files of a CREATE TABLE AS SELECT.
     */
    @Override
    public TableOperations temp(TableMetadata uncommitted) {
        TableMetadata base = this.current();
        this.gate.require(
            this.table, LineageDefaults.newSnapshots(base, uncommitted), this.defaults,
            base == null ? null : base.metadataFileLocation(), null);
        return super.temp(uncommitted);
    }

    private static boolean isRegistered(TableMetadata base, TableMetadata metadata) {
        return base == null && metadata.metadataFileLocation() != null;
    }
}
