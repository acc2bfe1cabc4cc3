"""A worker of `test_pace`, a process of its own: asks an S3 server for as much as it is let.
`python -m artemis_lifecycle_tests.storage.busy_worker ENDPOINT POSTGRES SECONDS`.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid

from artemis_lifecycle.storage.s3 import shared_client
from artemis_lifecycle.storage.stores import Stores
from artemis_lifecycle_tests.storage.test_pace import store_settings


def main(endpoint: str, uri: str, seconds: float) -> None:
    stores = Stores(store_settings(endpoint, uri))
    bucket = f"busy-{uuid.uuid4().hex[:8]}"
    shared_client(stores.settings).create_bucket(Bucket=bucket)
    path = f"s3://{bucket}/object"
    stores.write(path, b"x" * 6_000)
    end = time.monotonic() + seconds

    def looking() -> None:
        while time.monotonic() < end:
            stores.head(path)

    def moving() -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            stores.read(path)
            stores.write(f"{path}-{uuid.uuid4().hex}", b"y" * 4_000)
            list(stores.list(f"s3://{bucket}/"))
            stores.delete([f"{path}-{number}"])

    threads = [threading.Thread(target=work) for work in (looking, looking, moving, moving)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
