"""One Ray cluster, one TransferQueue and one agent for all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

AGENT = """
import json
import os
import urllib.request

from agentcore_rl_toolkit import AgentCoreRLApp

app = AgentCoreRLApp()


@app.rollout_entrypoint
def invoke_agent(payload):
    settings = payload["_rollout"]

    def ask(*said):
        messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]
        call = {"model": settings["model_id"], "messages": messages, "temperature": 0.25, "top_k": 3}
        body = json.dumps(call).encode()
        request = urllib.request.Request(settings["base_url"] + "/chat/completions", body, method="POST")
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.load(reply)["choices"][0]["message"]["content"]

    said = ask(payload["prompt"])
    if said == "raise":
        raise ValueError("broken on purpose")
    if said == "env":
        return {"rewards": float(os.environ["SCORE"])}
    if said == "vanish":
        os._exit(9)
    if said == "over":  # a second conversation: a rollout of two rows
        return {"rewards": [0.0, float(ask("start over: " + payload["prompt"]))]}
    if said == "go on":
        return {"rewards": float(ask(payload["prompt"], said, "and then?"))}
    return {"rewards": float(said)}
"""


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("agent") / "rl_app.py"
    path.write_text(AGENT)
    return path


@pytest.fixture(scope="session")
def queue() -> Iterator[None]:
    """verl's TransferQueue, as its task runner starts it."""
    import transfer_queue as tq
    from omegaconf import OmegaConf

    here = str(Path(__file__).parent)
    path = os.pathsep.join([here, str(Path(here).parent), os.environ.get("PYTHONPATH", "")])
    quiet = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": quiet})
    storage = {"storage_backend": "SimpleStorage", "SimpleStorage": {"total_storage_size": 1000}}
    storage["SimpleStorage"]["num_data_storage_units"] = 1
    tq.init(OmegaConf.create({"enable": True, "backend": storage}))
    yield
    tq.close()
    ray.shutdown()
