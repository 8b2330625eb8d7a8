"""SeaweedFS as a real S3 server on loopback: signatures are checked, conditional writes hold."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.process import clean_env, free_port, server

ACCESS_KEY, SECRET_KEY = "test-access", "test-secret"


@contextmanager
def seaweedfs(home: Path) -> Iterator[int]:
    """Run the server with its data under `home`; gives the S3 port."""
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = home / "s3.json"
    config.write_text(json.dumps({"identities": [identity]}))
    port = free_port()
    options = {
        "dir": str(home / "data"),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "s3.port": str(port),
        "s3.config": str(config),
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "s3.autoCreateBucket": "false",
        "s3.localSocket": str(home / "s3.sock"),
        "filer.localSocket": str(home / "filer.sock"),
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "volume.max": "100000",  # left to itself, as many buckets as the disk has room for full ones
    }
    for name in ("master", "volume", "filer", "admin", "s3"):
        options[f"{name}.port.grpc"] = str(free_port())
        options.setdefault(f"{name}.port", str(free_port()))
    (home / "data").mkdir()
    command = [os.path.join(os.path.dirname(sys.executable), "weed"), "mini"]
    command += [f"-{name}={value}" for name, value in options.items()]
    with server(command, port=port, log=home / "weed.log", env=clean_env()):
        yield port
