"""Serves the gateway of `agentcore-rl-toolkit==0.2.0`; run by that peer's own Python.

It has no command line, so this puts its parts together as its documentation does, and adds one route that ends a
session and gives its training rows. Arguments: port, engine's URL, tokenizer folder, history mode.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from typing import Any

from aiohttp import web


def main() -> None:
    port, url, folder, mode = sys.argv[1:]
    parts: Any = importlib.import_module("agentcore_rl_toolkit.rollout_gateway")
    backend: Any = importlib.import_module("agentcore_rl_toolkit.rollout_gateway.sampling_backends.vllm_http")
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder)
    gateway = parts.RolloutGateway(
        backend=backend.VllmHttpBackend(url),
        renderer=parts.HfTemplateRenderer(tokenizer),
        tokenizer=tokenizer,
        history_mode=mode,
    )

    async def rows(request: web.Request) -> web.Response:
        records = await gateway.finish_session(request.match_info["session"])
        return web.json_response({"rows": [dataclasses.asdict(record) for record in records]}, dumps=dumps)

    gateway.app.router.add_post("/rows/{session}", rows)
    gateway.run("127.0.0.1", int(port))


def dumps(value: Any) -> str:
    return json.dumps(value, default=str)


if __name__ == "__main__":
    main()
