package artemis.lifecycle;

import java.util.Map;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.AwsSessionCredentials;
import software.amazon.awssdk.auth.credentials.ProfileCredentialsProvider;
import software.amazon.awssdk.auth.credentials.StaticCredentialsProvider;

/**
 * The credentials that lifecycle.yaml gives a catalog, for the clients of AWS that have no settings for any (Glue): as
 * `client.credentials-provider`, which Iceberg makes by `create`, with the properties that begin with that name.
 */
public class GivenCredentials implements AwsCredentialsProvider {
    private final AwsCredentialsProvider given;

    private GivenCredentials(AwsCredentialsProvider given) {
        this.given = given;
    }

    public static AwsCredentialsProvider create(Map<String, String> properties) {
        // Iceberg's properties have nulls, too. Janino needs the casts.
        String profile = (String) properties.get("profile-name");
        if (profile != null) {
            return new GivenCredentials(ProfileCredentialsProvider.create(profile));
        }
        String key = (String) properties.get("access-key-id");
        String secret = (String) properties.get("secret-access-key");
        String token = (String) properties.get("session-token");
        AwsCredentials credentials = token == null
            ? (AwsCredentials) AwsBasicCredentials.create(key, secret)
            : (AwsCredentials) AwsSessionCredentials.create(key, secret, token);
        return new GivenCredentials(StaticCredentialsProvider.create(credentials));
    }

    @Override
    public AwsCredentials resolveCredentials() {
        return this.given.resolveCredentials();
    }
}
