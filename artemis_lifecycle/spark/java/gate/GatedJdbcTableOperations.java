package org.apache.iceberg.jdbc;

import artemis.lifecycle.LineageDefaults;
import artemis.lifecycle.LineageGate;
import artemis.lifecycle.LineageRejectedException;
import java.sql.SQLException;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.ManifestFile;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.ForbiddenException;
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
        try {
            super.doCommit(base, isRegistered(base, metadata) ? metadata : this.defaults.in(base, metadata));
        } catch (UncheckedSQLException failed) {
            // What the database refuses (as the cold tier's guard does) is in its words, not an "Unknown failure".
            Throwable cause = failed.getCause();
            if (cause instanceof SQLException && "42501".equals(((SQLException) cause).getSQLState())) {
                throw new ForbiddenException(failed, "%s", new Object[] {cause.getMessage()});
            }
            throw failed;
        }
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
     * Called for each commit inside a transaction. A CREATE TABLE AS SELECT is refused here, where Spark still deletes
     * its data files, and not at the transaction's end. Iceberg would delete the manifests only there.
     */
    @Override
    public TableOperations temp(TableMetadata uncommitted) {
        if (this.current() == null) {
            List<Snapshot> snapshots = LineageDefaults.newSnapshots(null, uncommitted);
            try {
                this.gate.require(this.table, snapshots, this.defaults, null, null);
            } catch (LineageRejectedException refused) {
                try {
                    this.deleteManifests(snapshots);
                } catch (RuntimeException failed) {
                    refused.addSuppressed(failed);
                }
                throw refused;
            }
        }
        return super.temp(uncommitted);
    }

    private void deleteManifests(List<Snapshot> snapshots) {
        for (Iterator each = snapshots.iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            for (Iterator manifests = snapshot.allManifests(this.io()).iterator(); manifests.hasNext();) {
                this.io().deleteFile(((ManifestFile) manifests.next()).path());
            }
            this.io().deleteFile(snapshot.manifestListLocation());
        }
    }

    private static boolean isRegistered(TableMetadata base, TableMetadata metadata) {
        return base == null && metadata.metadataFileLocation() != null;
    }
}
