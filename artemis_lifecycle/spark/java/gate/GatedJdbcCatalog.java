package artemis.lifecycle;

import java.util.List;
import java.util.Map;
import java.util.function.Function;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.jdbc.GatedJdbcTableOperations;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.jdbc.JdbcClientPool;

/**
 * A JdbcCatalog on Postgres whose commits pass the lineage gate of its database before their metadata file is written:
 * `spark.sql.catalog.NAME.catalog-impl`. Where the database has no gate, it is Iceberg's own JdbcCatalog, with the
 * session's defaults (LineageDefaults).
 *
 * Compiled by Janino, too: no lambdas, no inferred type arguments.
 */
public class GatedJdbcCatalog extends JdbcCatalog {
    private final Pools pools;
    private Map<String, String> properties;
    private LineageGate gate;
    private LineageDefaults defaults;
    private boolean hasViews;

    public GatedJdbcCatalog() {
        this(new Pools());
    }

    private GatedJdbcCatalog(Pools pools) {
        super(null, pools, true);
        this.pools = pools;
    }

    @Override
    public void initialize(String given_name, Map<String, String> given) {
        // A session can have another catalog of that name: this one's rows are then under another name than its own.
        String name = given.containsKey("artemis.rows-of") ? (String) given.get("artemis.rows-of") : given_name;
        // GatedJdbcTableOperations is of Iceberg's own package, which a class of another loader is not.
        if (this.getClass().getClassLoader() != JdbcCatalog.class.getClassLoader()) {
            throw new IllegalStateException(
                "The jar with " + this.getClass().getName() + " must be where iceberg-spark-runtime is: both in "
                + "spark.jars, or both in Spark's folder jars");
        }
        String uri = (String) given.get("uri");
        if (uri != null && !uri.startsWith("jdbc:postgresql:")) {
            throw new IllegalArgumentException("Catalog " + name + " is not on Postgres, and has no lineage gate");
        }
        this.defaults = new LineageDefaults(given);
        this.properties = given;
        super.initialize(name, given);
        this.gate = new LineageGate(this.name(), this.pools.made);
        try {
            // JdbcCatalog exposes the version of its schema in no other way.
            super.newViewOps(TableIdentifier.of(new String[] {"version"}));
            this.hasViews = true;
        } catch (UnsupportedOperationException old) {
            this.hasViews = false;
        }
    }

    @Override
    protected TableOperations newTableOps(TableIdentifier table) {
        return new GatedJdbcTableOperations(
            this.pools.made, super.newTableOps(table).io(), this.name(), table, this.properties, this.hasViews,
            this.gate, this.defaults);
    }

    /** All snapshots of the table must meet the requirements of its new name, or are recorded, as that name's mode says. */
    @Override
    public void renameTable(TableIdentifier from, TableIdentifier to) {
        if (!from.equals(to) && this.gate.governs(to)) {
            TableMetadata metadata = this.newTableOps(from).current();
            if (metadata != null) {
                List<Snapshot> snapshots = LineageDefaults.newSnapshots(null, metadata);
                String location = metadata.metadataFileLocation();
                this.gate.require(to, snapshots, LineageDefaults.NONE, location, location);
            }
        }
        super.renameTable(from, to);
    }

    /** Keeps the pool that JdbcCatalog makes for itself. */
    private static final class Pools implements Function {
        private JdbcClientPool made;

        @Override
        public Object apply(Object properties) {
            Map<String, String> given = (Map<String, String>) properties;
            this.made = new JdbcClientPool((String) given.get("uri"), given);
            return this.made;
        }
    }
}
