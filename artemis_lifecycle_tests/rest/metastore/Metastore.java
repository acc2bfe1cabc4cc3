import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;

/** A Hive metastore with the tables that locks need. */
public class Metastore {
  public static void main(String[] arguments) throws Throwable {
    TxnDbUtil.prepDb(new HiveConf());
    HiveMetaStore.main(arguments);
  }
}
