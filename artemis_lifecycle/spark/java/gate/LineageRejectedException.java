package artemis.lifecycle;

import org.apache.iceberg.exceptions.ForbiddenException;

/**
 * The lineage gate refuses a commit. Iceberg neither tries it again nor doubts its outcome, and deletes the files that
 * were written for it.
 */
public class LineageRejectedException extends ForbiddenException {
    public LineageRejectedException(String table, String[] problems) {
        super("The lineage gate refuses the commit to %s: %s", new Object[] {table, String.join("; ", problems)});
    }
}
