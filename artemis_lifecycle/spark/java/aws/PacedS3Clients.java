package artemis.lifecycle;

import java.io.FilterInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.sql.Connection;
import java.sql.Driver;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.iceberg.aws.AwsClientProperties;
import org.apache.iceberg.aws.HttpClientProperties;
import org.apache.iceberg.aws.s3.S3FileIOAwsClientFactory;
import org.apache.iceberg.aws.s3.S3FileIOProperties;
import software.amazon.awssdk.core.client.config.ClientOverrideConfiguration;
import software.amazon.awssdk.core.exception.AbortedException;
import software.amazon.awssdk.core.interceptor.Context;
import software.amazon.awssdk.core.interceptor.ExecutionAttributes;
import software.amazon.awssdk.core.interceptor.ExecutionInterceptor;
import software.amazon.awssdk.http.SdkHttpMethod;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.S3ClientBuilder;
import software.amazon.awssdk.services.s3.model.DeleteObjectsRequest;

/**
 * Clients of S3 for Iceberg's S3FileIO, made as Iceberg's default factory makes them, each of whose requests (a part,
 * a try again) and bytes waits for its turn in the bucket that all workers share: the rows of `lifecycle.paces` that
 * `storage/pace.py` draws from, by the same statement. Its settings are in the catalog's properties, so that
 * executors have it too.
 *
 * Compiled by Janino, which Spark brings along, when the jars are set up: no lambdas, no inferred type arguments.
 */
public class PacedS3Clients implements S3FileIOAwsClientFactory {
    private Map<String, String> properties = new HashMap<String, String>();

    public PacedS3Clients() {}

    @Override
    public void initialize(Map<String, String> given) {
        this.properties = new HashMap<String, String>(given);
    }

    @Override
    public S3Client s3() {
        S3FileIOProperties s3 = new S3FileIOProperties(this.properties);
        AwsClientProperties aws = new AwsClientProperties(this.properties);
        S3ClientBuilder builder = S3Client.builder();
        aws.applyClientRegionConfiguration(builder);
        aws.applyLegacyMd5Plugin(builder);
        new HttpClientProperties(this.properties).applyHttpClientConfigurations(builder);
        s3.applyEndpointConfigurations(builder);
        s3.applyServiceConfigurations(builder);
        s3.applyCredentialConfigurations(aws, builder);
        s3.applySignerConfiguration(builder);
        s3.applyS3AccessGrantsConfigurations(builder);
        s3.applyUserAgentConfigurations(builder);
        s3.applyRetryConfigurations(builder);
        // Janino knows what type a property has, and not what type a map's value has.
        Properties settings = new Properties();
        settings.putAll(this.properties);
        ClientOverrideConfiguration set = builder.overrideConfiguration();
        ClientOverrideConfiguration.Builder overrides =
            set == null ? ClientOverrideConfiguration.builder() : set.toBuilder();
        builder.overrideConfiguration(
            (ClientOverrideConfiguration) overrides.addExecutionInterceptor(new Paced(Pace.of(settings))).build());
        return (S3Client) builder.build();
    }

    /** Asked for only with `s3.analytics-accelerator.enabled`; such a catalog is not given this factory. */
    @Override
    public S3AsyncClient s3Async() {
        throw new UnsupportedOperationException(
            "Asynchronous clients of S3 are not paced: set s3.client-factory-impl, or leave s3.analytics-accelerator.enabled out");
    }

    /** Every attempt asks before it is sent; what comes back is paid for as it is read. */
    static final class Paced implements ExecutionInterceptor {
        private final Pace pace;

        Paced(Pace pace) {
            this.pace = pace;
        }

        @Override
        public void beforeTransmission(Context.BeforeTransmission context, ExecutionAttributes attributes) {
            SdkHttpMethod method = context.httpRequest().method();
            boolean reads = method == SdkHttpMethod.GET || method == SdkHttpMethod.HEAD;
            double count = context.request() instanceof DeleteObjectsRequest
                ? ((DeleteObjectsRequest) context.request()).delete().objects().size() : 1.0;
            (reads ? this.pace.reads : this.pace.writes).take(count);
            Optional length = context.httpRequest().firstMatchingHeader("Content-Length");
            if (length.isPresent()) {
                this.pace.bytes.take(Double.parseDouble((String) length.get()));
            }
        }

        @Override
        public Optional<InputStream> modifyHttpResponseContent(
                Context.ModifyHttpResponse context, ExecutionAttributes attributes) {
            Optional body = context.responseBody();
            if (!body.isPresent()) {
                return body;
            }
            return Optional.of(new Paid((InputStream) body.get(), this.pace.bytes));
        }
    }

    /** A body whose bytes are paid for in pieces. A reader that stops early pays for no more than it took. */
    static final class Paid extends FilterInputStream {
        private static final int PIECE = 65536;
        private final Bucket bytes;
        private long owed = 0;

        Paid(InputStream body, Bucket bytes) {
            super(body);
            this.bytes = bytes;
        }

        @Override
        public int read() throws IOException {
            int one = this.in.read();
            this.took(one < 0 ? -1 : 1);
            return one;
        }

        @Override
        public int read(byte[] into, int offset, int length) throws IOException {
            int count = this.in.read(into, offset, Math.min(length, PIECE));
            this.took(count);
            return count;
        }

        @Override
        public long skip(long count) throws IOException {
            long skipped = this.in.skip(Math.min(count, (long) PIECE));
            this.took(skipped);
            return skipped;
        }

        @Override
        public void close() throws IOException {
            this.in.close();
            this.took(-1);
        }

        private void took(long count) {
            this.owed += Math.max(0L, count);
            if (this.owed >= PIECE || (count < 0 && this.owed > 0)) {
                long due = this.owed;
                this.owed = 0;
                this.bytes.take((double) due);
            }
        }
    }

    /** The buckets of one configuration, in this JVM. */
    static final class Pace {
        private static final ConcurrentHashMap<String, Pace> ALL = new ConcurrentHashMap<String, Pace>();
        final Bucket reads;
        final Bucket writes;
        final Bucket bytes;

        private Pace(Properties settings) {
            this.reads = new Bucket(settings, "reads", true);
            this.writes = new Bucket(settings, "writes", true);
            this.bytes = new Bucket(settings, "bytes", false);
        }

        static Pace of(Properties settings) {
            String key = settings.getProperty("artemis.pace.uri") + " " + settings.getProperty("artemis.pace.name") + " "
                + settings.getProperty("artemis.pace.reads-per-second") + " "
                + settings.getProperty("artemis.pace.writes-per-second") + " "
                + settings.getProperty("artemis.pace.bytes-per-second");
            Pace made = new Pace(settings);
            Pace there = (Pace) ALL.putIfAbsent(key, made);
            return there == null ? made : there;
        }
    }

    /**
     * One JVM's hand in one shared bucket. The numbers, and what each is for, are those of `Pace`. Where Postgres
     * does not answer, requests keep to the rate by this JVM's own count.
     */
    static final class Bucket {
        private static final double SLOT = 0.05;
        private static final double KEEPS = 0.5;
        private static final double RETRY = 10.0;
        private final String uri;
        private final Properties login = new Properties();
        private final String name;
        private final double rate;
        private final double slack;
        private final boolean alone;
        private final String draw;
        private Connection connection = null;
        private double tokens = 0.0;
        private double expires = 0.0;
        private double downUntil = 0.0;
        private double nextAlone = 0.0;

        Bucket(Properties settings, String kind, boolean alone) {
            String given = settings.getProperty("artemis.pace." + kind + "-per-second");
            this.rate = given == null ? 0.0 : Double.parseDouble(given);
            this.slack = given == null ? 1.0 : Double.parseDouble(settings.getProperty("artemis.pace." + kind + "-slack"));
            this.alone = alone;
            this.uri = settings.getProperty("artemis.pace.uri");
            this.name = settings.getProperty("artemis.pace.name") + "/" + kind;
            this.draw = settings.getProperty("artemis.pace.draw");
            this.login.setProperty("ApplicationName", "artemis-lifecycle-pace");
            this.login.setProperty("connectTimeout", "5");
            this.login.setProperty("socketTimeout", "10");
            this.login.setProperty("options", "-c statement_timeout=5000");
            if (settings.getProperty("artemis.pace.user") != null) {
                this.login.setProperty("user", settings.getProperty("artemis.pace.user"));
            }
            if (settings.getProperty("artemis.pace.password") != null) {
                this.login.setProperty("password", settings.getProperty("artemis.pace.password"));
            }
        }

        /** Wait until so many tokens may be spent, and spend them. */
        synchronized void take(double count) {
            if (this.rate <= 0.0 || count <= 0.0) {
                return;
            }
            if (now() >= this.expires) {
                this.tokens = 0.0;
            }
            if (this.tokens < count) {
                double drawn = Math.max(count - this.tokens, this.rate * SLOT);
                double wait = this.draw(drawn / (this.rate * this.slack));
                if (Double.isNaN(wait)) {
                    if (this.alone) {
                        sleep(this.nextAlone - now());
                        this.nextAlone = Math.max(this.nextAlone, now()) + count / this.rate;
                    }
                    return;
                }
                sleep(wait);
                this.tokens += drawn;
                this.expires = now() + KEEPS;
            }
            this.tokens -= count;
        }

        /** Seconds until our turn; NaN where Postgres does not answer. */
        private double draw(double cost) {
            if (this.uri == null || now() < this.downUntil) {
                return Double.NaN;
            }
            // A connection that idled may have died since; one more is tried before Postgres counts as gone.
            for (int left = this.connection == null ? 1 : 2; left > 0; left--) {
                try {
                    return this.ask(cost);
                } catch (Exception broken) {
                    this.drop();
                }
            }
            this.downUntil = now() + RETRY;
            return Double.NaN;
        }

        private double ask(double cost) throws Exception {
            if (this.connection == null) {
                // Not by DriverManager: it sees the drivers of the system's class path only.
                Class driver = Class.forName("org.postgresql.Driver", true, PacedS3Clients.class.getClassLoader());
                this.connection =
                    ((Driver) driver.getDeclaredConstructor(new Class[0]).newInstance(new Object[0])).connect(this.uri, this.login);
            }
            PreparedStatement statement = this.connection.prepareStatement(this.draw);
            try {
                statement.setString(1, this.name);
                statement.setDouble(2, cost);
                statement.setDouble(3, cost);
                statement.setDouble(4, cost);
                ResultSet row = statement.executeQuery();
                row.next();
                return row.getDouble(1);
            } finally {
                statement.close();
            }
        }

        private void drop() {
            try {
                if (this.connection != null) {
                    this.connection.close();
                }
            } catch (SQLException broken) {
                // It is gone either way.
            }
            this.connection = null;
        }

        private static double now() {
            return System.nanoTime() / 1e9;
        }

        private static void sleep(double seconds) {
            if (seconds <= 0.0) {
                return;
            }
            try {
                Thread.sleep((long) Math.ceil(seconds * 1000.0));
            } catch (InterruptedException stopped) {
                // A canceled task or a paused step: the client must not take it for a failed try.
                Thread.currentThread().interrupt();
                throw AbortedException.create("interrupted while waiting for the pace");
            }
        }
    }
}
