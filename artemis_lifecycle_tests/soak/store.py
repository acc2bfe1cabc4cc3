"""An S3 server as a process of its own: `python -m artemis_lifecycle_tests.soak.store PORT-FILE`."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path


def main(port_file: Path) -> None:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    partial = port_file.with_suffix(".new")
    partial.write_text(str(server.get_host_and_port()[1]))
    partial.rename(port_file)
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
