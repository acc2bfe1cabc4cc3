"""A listing of S3, page after page: `python -m bench.listing` prints JSON, `--keys 200000` is how many.

The server is a process of its own that answers each request after `--wait` milliseconds, with a page of a thousand keys
as S3 writes it, and keeps nothing. Each side runs `--repetitions` times, in turns: `S3Store.list`, and boto3 alone (the
same pages, parsed by botocore). Seconds are of the clock; processor time is this process' own, for each key.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, urlsplit

from artemis_lifecycle.storage.s3 import S3Store
from artemis_lifecycle.storage.settings import StoreSettings

PAGE = 1000
OBJECT = (
    "<Contents><Key>t/data/day=2026-01-{:02d}/{:08d}-77-0a1b2c3d-00001.parquet</Key><LastModified>2026-01-31T00:00:00.000Z"
    "</LastModified><ETag>&quot;0123456789abcdef0123456789abcdef&quot;</ETag><Size>123456</Size>"
    "<StorageClass>STANDARD</StorageClass></Contents>"
)


def serve(keys: int, wait: float, ready: Connection) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            start = int(asked.get("continuation-token", ["0"])[0])
            end = min(start + PAGE, keys)
            rest = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{end}</NextContinuationToken>"
            objects = "".join(OBJECT.format(number * 28 // keys + 1, number) for number in range(start, end))
            body = (
                '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
                f"<Name>b</Name>{rest if end < keys else ''}{objects}</ListBucketResult>"
            ).encode()
            time.sleep(wait)
            self.send_response(200)
            self.send_header("Content-Type", "application/xml")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        ready.send(server.server_address[1])
        server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.listing", description=__doc__)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--wait", type=float, default=30)
    parser.add_argument("--repetitions", type=int, default=3)
    given = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(given.keys, given.wait / 1000, there), daemon=True)
    server.start()
    endpoint = f"http://127.0.0.1:{here.recv()}"
    store = S3Store(StoreSettings(endpoint, "us-east-1", "key", "secret", s3_path_style=True))

    def alone() -> int:
        import boto3

        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )
        pages = client.get_paginator("list_objects_v2").paginate(Bucket="b", Prefix="t/")
        return sum(len(page["Contents"]) for page in pages)

    sides: dict[str, Callable[[], int]] = {"ours": lambda: sum(1 for _ in store.list("s3://b/t")), "boto3": alone}
    for _ in range(given.repetitions):
        for side, listed in sides.items():
            began, worked = time.perf_counter(), time.process_time()
            count = listed()
            seconds, used = time.perf_counter() - began, time.process_time() - worked
            if count != given.keys:
                raise SystemExit(f"{side} lists {count:,} keys of {given.keys:,}")
            each = round(used / count * 1e6, 1)
            print(
                json.dumps({"side": side, "seconds": round(seconds, 2), "cpu_microseconds_per_key": each}), flush=True
            )
    server.terminate()


if __name__ == "__main__":
    main()
