import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;

/** Iceberg's own REST catalog on a loopback port, over SQLite: PORT DATABASE WAREHOUSE. */
public final class RestAdapter {
    private RestAdapter() {}

    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        properties.put("catalog-impl", JdbcCatalog.class.getName());
        properties.put("uri", "jdbc:sqlite:" + arguments[1]);
        properties.put("warehouse", arguments[2]);
        properties.put("jdbc.schema-version", "V1");
        properties.put("io-impl", "org.apache.iceberg.hadoop.HadoopFileIO");
        Catalog catalog = CatalogUtil.buildIcebergCatalog("rest", properties, new Configuration());
        int port = Integer.parseInt(arguments[0]);
        Server server = new Server(new InetSocketAddress(InetAddress.getLoopbackAddress(), port));
        ServletContextHandler routes = new ServletContextHandler();
        routes.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        server.setHandler(routes);
        server.start();
        server.join();
    }
}
