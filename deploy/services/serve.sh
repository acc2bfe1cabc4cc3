#!/bin/sh
# serve.sh postgres | s3: one of the two, with its data in /data and its secret from /run/secrets.
set -eu
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
case "$1" in
postgres)
    if [ ! -s /data/PG_VERSION ]; then
        "$bin/initdb" -D /data -U artemis --auth=scram-sha-256 --pwfile=/run/secrets/postgres_password -E UTF8 >/dev/null
        echo 'host all all all scram-sha-256' >> /data/pg_hba.conf
        "$bin/pg_ctl" -D /data -w -o "-c listen_addresses='' -k /tmp" start >/dev/null
        PGPASSWORD=$(cat /run/secrets/postgres_password) "$bin/psql" -h /tmp -U artemis -d postgres -q \
            -c 'CREATE DATABASE artemis' -c 'CREATE DATABASE dagster'
        "$bin/pg_ctl" -D /data -w -m fast stop >/dev/null
    fi
    exec "$bin/postgres" -D /data -k /tmp -c listen_addresses='127.0.0.1'
    ;;
s3)
    AWS_SECRET_ACCESS_KEY=$(cat /run/secrets/s3_secret_key)
    export AWS_ACCESS_KEY_ID=artemis AWS_SECRET_ACCESS_KEY
    exec weed mini -dir=/data -ip=127.0.0.1 -ip.bind=127.0.0.1 -s3.port=8333 -bucket=lake
    ;;
esac
