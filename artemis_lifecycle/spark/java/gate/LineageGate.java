package artemis.lifecycle;

import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.apache.iceberg.ClientPool;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.ForbiddenException;
import org.apache.iceberg.jdbc.JdbcClientPool;
import org.apache.iceberg.jdbc.UncheckedSQLException;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.util.JsonUtil;

/**
 * What a catalog asks of the gate in its database, as `catalogs/gate/rules.py` does. The rules are the database's.
 * Every request is a transaction of its own, so that a refusal is recorded.
 */
public final class LineageGate {
    private static final String INSTALLED =
        "SELECT EXISTS (SELECT FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace "
        + "WHERE n.nspname = 'artemis_gate' AND p.proname = 'request_pass')";
    private static final String REQUEST = "SELECT artemis_gate.request_pass(?, ?, ?, ?, ?, CAST(? AS JSONB))";
    private static final String MODE = "SELECT artemis_gate.mode_of(?, ?, ?)";
    private static final String NO_RIGHT = "42501";
    private final String catalog;
    private final JdbcClientPool connections;

    public LineageGate(String catalog, JdbcClientPool connections) {
        this.catalog = catalog;
        this.connections = connections;
    }

    /**
     * Request a pass for the swap of `table` from `base` (null: no row yet) to `location`; with null for `location`,
     * only check. Throws LineageRejectedException; ForbiddenException for a login that may not request passes.
     */
    public void require(
            TableIdentifier table, List<Snapshot> snapshots, LineageDefaults defaults, String base, String location) {
        if (location == null && snapshots.isEmpty()) {
            return;
        }
        String summaries = asJson(snapshots, defaults);
        String[] problems =
            (String[]) this.ask(table, new Question(REQUEST, this.row(table, new String[] {base, location, summaries})));
        if (problems != null && problems.length > 0) {
            throw new LineageRejectedException(table.toString(), problems);
        }
    }

    /** Whether commits to the table without lineage are refused or recorded. */
    public boolean governs(TableIdentifier table) {
        Object mode = this.ask(table, new Question(MODE, this.row(table, new String[0])));
        return mode != null && !"none".equals(mode);
    }

    private String[] row(TableIdentifier table, String[] more) {
        String[] values = new String[3 + more.length];
        values[0] = this.catalog;
        values[1] = String.join(".", table.namespace().levels());
        values[2] = table.name();
        System.arraycopy(more, 0, values, 3, more.length);
        return values;
    }

    private Object ask(TableIdentifier table, Question question) {
        try {
            return this.connections.run(question);
        } catch (RuntimeException failed) {
            throw failed;
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
            throw new RuntimeException("Interrupted while asking the lineage gate", stopped);
        } catch (Exception failed) {
            if (failed instanceof SQLException && NO_RIGHT.equals(((SQLException) failed).getSQLState())) {
                throw new ForbiddenException(
                    failed,
                    "This login of Postgres may not request a pass of the lineage gate for %s: %s. Run artemis gate "
                    + "enable again: it grants that to every login",
                    new Object[] {table, failed.getMessage().split("\n")[0]});
            }
            throw new UncheckedSQLException(
                failed, "The lineage gate did not answer for %s", new Object[] {table});
        }
    }

    private static String asJson(List<Snapshot> snapshots, LineageDefaults defaults) {
        ArrayNode all = JsonUtil.mapper().createArrayNode();
        for (Iterator each = snapshots.iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            ObjectNode summary = all.addObject();
            Map<String, String> values = defaults.summary(snapshot);
            for (Iterator keys = values.keySet().iterator(); keys.hasNext();) {
                String key = (String) keys.next();
                summary.put(storable(key), storable((String) values.get(key)));
            }
            if (snapshot.operation() != null) {
                summary.put("operation", snapshot.operation());
            }
            summary.put("snapshot-id", String.valueOf(snapshot.snapshotId()));
        }
        return all.toString();
    }

    /** Postgres stores neither the character 0 nor half of a surrogate pair. */
    private static String storable(String text) {
        return new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8).replace('\0', '\1');
    }

    /** One statement with its values; null where the database has no gate. */
    private static final class Question implements ClientPool.Action {
        private final String statement;
        private final String[] values;

        Question(String statement, String[] values) {
            this.statement = statement;
            this.values = values;
        }

        @Override
        public Object run(Object client) throws SQLException {
            Connection connection = (Connection) client;
            return Boolean.TRUE.equals(first(connection, INSTALLED, new String[0]))
                ? first(connection, this.statement, this.values)
                : null;
        }

        private static Object first(Connection connection, String statement, String[] values) throws SQLException {
            PreparedStatement prepared = connection.prepareStatement(statement);
            try {
                for (int place = 0; place < values.length; place++) {
                    prepared.setString(place + 1, values[place]);
                }
                ResultSet row = prepared.executeQuery();
                row.next();
                Object found = row.getObject(1);
                return found instanceof java.sql.Array ? ((java.sql.Array) found).getArray() : found;
            } finally {
                prepared.close();
            }
        }
    }
}
