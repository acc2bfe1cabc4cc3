#!/bin/sh
# Runs a command as whatever user the container was given, where nothing but /tmp can be written.
set -eu
export HOME="${HOME:-/tmp}"
[ -w "$HOME" ] || export HOME=/tmp
# Hadoop's login needs a name for the user id, and OpenShift and runAsUser give ids that have none.
if ! id -un >/dev/null 2>&1; then
    printf 'artemis:x:%s:%s:artemis:%s:/usr/sbin/nologin\n' "$(id -u)" "$(id -g)" "$HOME" > /tmp/.artemis-passwd
    export NSS_WRAPPER_PASSWD=/tmp/.artemis-passwd NSS_WRAPPER_GROUP=/etc/group LD_PRELOAD=libnss_wrapper.so
fi
# Numba reads a cache only from where it could write one.
[ -d "$NUMBA_CACHE_DIR" ] || cp -r /opt/artemis/numba "$NUMBA_CACHE_DIR"
# A secret that is mounted as a file, for what reads it from the environment: Dagster's own storage.
if [ -n "${ARTEMIS_DAGSTER_POSTGRES_FILE:-}" ]; then
    ARTEMIS_DAGSTER_POSTGRES=$(cat "$ARTEMIS_DAGSTER_POSTGRES_FILE")
    export ARTEMIS_DAGSTER_POSTGRES
fi
exec "$@"
