package artemis.demo;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's REST catalog on a free loopback port. Iceberg's own RESTCatalogServer listens on every interface, and this
 * one asks for no credentials.
 *
 * The catalog's name and its properties, as `key=value`, are lines of the standard input up to an empty one: passwords
 * are on no command line. It prints its address, and ends when its input does: it cannot outlive who started it.
 */
public final class RestServer {
    private RestServer() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String name = input.readLine();
        Map<String, String> properties = new HashMap<String, String>();
        for (String line = input.readLine(); line != null && !line.isEmpty(); line = input.readLine()) {
            int equals = line.indexOf('=');
            properties.put(line.substring(0, equals), line.substring(equals + 1));
        }
        Catalog catalog = CatalogUtil.buildIcebergCatalog(name, properties, new Configuration());
        ServletContextHandler routes = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        routes.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        server.setHandler(routes);
        server.start();
        System.out.println("Listening on: " + server.getURI());
        while (input.readLine() != null) {
            // Nothing more is expected but the end.
        }
        server.stop();
        System.exit(0);
    }
}
