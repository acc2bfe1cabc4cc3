package artemis.lifecycle;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import org.apache.iceberg.Snapshot;
import org.apache.iceberg.SnapshotParser;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.JsonNode;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.iceberg.util.JsonUtil;

/**
 * A session's summary keys: `lineage.default.KEY` among the catalog's properties. Every new snapshot of a commit gets
 * those that its summary lacks, whatever wrote it: a statement, a procedure or an action.
 */
public final class LineageDefaults {
    /** Adds nothing. */
    public static final LineageDefaults NONE = new LineageDefaults(new HashMap<String, String>());

    private static final String PREFIX = "lineage.default.";
    private final Map<String, String> values = new HashMap<String, String>();

    public LineageDefaults(Map<String, String> properties) {
        for (Iterator each = properties.entrySet().iterator(); each.hasNext();) {
            Map.Entry property = (Map.Entry) each.next();
            String name = (String) property.getKey();
            if (name.startsWith(PREFIX)) {
                this.values.put(name.substring(PREFIX.length()), (String) property.getValue());
            }
        }
        if (this.values.containsKey("operation")) {
            throw new IllegalArgumentException("Iceberg sets operation: remove " + PREFIX + "operation");
        }
    }

    /**
     * The snapshots that `metadata` has and `base` (null: no table yet) does not have, or has with another content: a
     * writer chooses the ids.
     */
    public static List<Snapshot> newSnapshots(TableMetadata base, TableMetadata metadata) {
        List<Snapshot> found = new ArrayList<Snapshot>();
        for (Iterator each = metadata.snapshots().iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            if (!areSame(snapshot, base == null ? null : base.snapshot(snapshot.snapshotId()))) {
                found.add(snapshot);
            }
        }
        return found;
    }

    // Snapshot.equals compares neither files nor summaries.
    private static boolean areSame(Snapshot snapshot, Snapshot other) {
        return snapshot == other
            || (other != null
                && snapshot.timestampMillis() == other.timestampMillis()
                && Objects.equals(snapshot.operation(), other.operation())
                && Objects.equals(snapshot.summary(), other.summary())
                && files(snapshot).equals(files(other)));
    }

    // In the first format, a snapshot may name its manifests itself.
    private static String files(Snapshot snapshot) {
        String list = snapshot.manifestListLocation();
        return list == null ? SnapshotParser.toJson(snapshot) : list;
    }

    /** The summary keys of a new snapshot, with the defaults, without its operation. */
    public Map<String, String> summary(Snapshot snapshot) {
        Map<String, String> found = new HashMap<String, String>(this.values);
        Map<String, String> own = snapshot.summary() == null ? new HashMap<String, String>() : snapshot.summary();
        for (Iterator each = own.keySet().iterator(); each.hasNext();) {
            String key = (String) each.next();
            String value = (String) own.get(key);
            if (!found.containsKey(key) || !value.trim().isEmpty()) {
                found.put(key, value);
            }
        }
        return found;
    }

    /** `metadata` with the defaults in the summaries of its new snapshots; itself where there is nothing to add. */
    public TableMetadata in(TableMetadata base, TableMetadata metadata) {
        if (this.values.isEmpty()) {
            return metadata;
        }
        Map<Long, Map> changed = new HashMap<Long, Map>();
        for (Iterator each = newSnapshots(base, metadata).iterator(); each.hasNext();) {
            Snapshot snapshot = (Snapshot) each.next();
            Map<String, String> summary = this.summary(snapshot);
            // Without an operation, metadata files have no summary.
            if (snapshot.operation() != null && !summary.equals(snapshot.summary())) {
                changed.put(Long.valueOf(snapshot.snapshotId()), summary);
            }
        }
        return changed.isEmpty() ? metadata : rewritten(metadata, changed);
    }

    // The builder of TableMetadata cannot replace a snapshot. Its JSON is all that a metadata file keeps of it.
    private static TableMetadata rewritten(TableMetadata metadata, Map<Long, Map> changed) {
        JsonNode root;
        try {
            root = JsonUtil.mapper().readTree(TableMetadataParser.toJson(metadata));
        } catch (IOException impossible) {
            throw new UncheckedIOException(impossible);
        }
        for (Iterator each = root.get("snapshots").iterator(); each.hasNext();) {
            JsonNode snapshot = (JsonNode) each.next();
            Map summary = (Map) changed.get(Long.valueOf(snapshot.get("snapshot-id").asLong()));
            if (summary != null) {
                ObjectNode node = (ObjectNode) snapshot.get("summary");
                for (Iterator keys = summary.keySet().iterator(); keys.hasNext();) {
                    String key = (String) keys.next();
                    node.put(key, (String) summary.get(key));
                }
            }
        }
        return TableMetadataParser.fromJson(root);
    }
}
