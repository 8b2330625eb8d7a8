"""Serves OpenEnv's capture server; run by that peer's own Python.

Its own launcher belongs to a rollout and listens on all addresses, so this serves its app alone. Sessions are made on
their first call, as for the other peers, and the engine decides how long a reply is. Arguments: port, engine's URL,
model.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def main() -> None:
    port, url, model = sys.argv[1:]
    server: Any = importlib.import_module("openenv.core.harness.capture.server")
    app = server.create_app(llm_url=f"{url}/v1", model=model, require_registered=False, max_output_tokens=0)
    importlib.import_module("uvicorn").run(app, host="127.0.0.1", port=int(port), log_level="warning", backlog=4096)


if __name__ == "__main__":
    main()
