"""Stands in for slime's program: says what it was told, and what Ray would give its workers."""

from __future__ import annotations

import json
import os
import sys

import ray

if __name__ == "__main__":

    @ray.remote
    def worker() -> dict[str, str]:
        return dict(os.environ)

    told = {"flags": sys.argv[1:], "worker": ray.get(worker.remote()), "first": sys.path[0]}
    told["cluster"] = ray.get_runtime_context().gcs_address
    with open(os.environ["TOLD"] + ".tmp", "w") as file:
        json.dump(told, file)
    os.rename(file.name, os.environ["TOLD"])
    if "--fail" in sys.argv:
        sys.exit(3)
    if "--wait" in sys.argv:
        import time

        time.sleep(600)
