"""The store fails and the network cuts answers off; every rollout still leaves exactly one, right result."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.store import Store, open_store
from support.agent import rollout, run_agent
from support.fault_proxy import FaultProxy
from support.runtime import eventually

AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    time.sleep(payload["seconds"])
    if payload["n"] % 10 == 9:
        raise ValueError(f"row {payload['n']} fails on purpose")
    return {"rewards": payload["n"] / 1000, "echo": payload["n"]}
"""


def test_200_rollouts_while_the_store_fails_and_is_down(aws_env: Any, tmp_path: Path) -> None:
    bucket, queue = aws_env.new_bucket(), aws_env.new_queue()
    with FaultProxy(aws_env.s3_url, rate=0.2, seed=7).serving() as proxy:
        env = aws_env.env | {"AWS_ENDPOINT_URL_S3": proxy.url}
        with run_agent(AGENT, tmp_path, **env) as agent:
            proxy.down = True

            def invoke(n: int) -> str:
                payload = {"n": n, "seconds": n % 7 / 10, "_rollout": rollout(bucket, f"row-{n}", sqs_url=queue)}
                session_id = str(uuid.uuid4())
                answers = [agent.invoke(payload, session_id) for _ in range(2)]  # as boto3's retries do
                assert answers[0] == answers[1]
                assert answers[0][0] == 200
                return str(answers[0][1]["result_key"])

            with ThreadPoolExecutor(200) as pool:
                keys = list(pool.map(invoke, range(200)))
            eventually(lambda: proxy.counts["down"] > 200, 60)  # it was hard
            proxy.down = False
            agent.wait_healthy(60)
        for fault in ("unavailable", "cut before", "cut after"):
            assert proxy.counts[fault] > 5, proxy.counts
    store = open_store(bucket, sqs_url=queue)
    assert sorted(store.keys("exp/")) == sorted(keys)
    for n, key in enumerate(keys):
        document = json.loads(store.get(key))
        assert (document["input_id"], document["payload"]["n"]) == (f"row-{n}", n)
        if n % 10 == 9:
            assert (document["status_code"], document["error"]["kind"]) == (500, "agent_error")
        else:
            assert (document["status_code"], document["rewards"], document["echo"]) == (200, n / 1000, n)
    assert announced(store, 200) == Counter(keys)


def announced(store: Store, expected: int) -> Counter[str]:
    found: Counter[str] = Counter()
    while found.total() < expected:
        keys = store.announcements("exp", 1)
        if not keys:
            break
        found.update(keys)
    return found


@pytest.mark.parametrize("back_after", [1.0, None])
def test_a_result_on_its_way_when_the_session_ends(aws_env: Any, tmp_path: Path, back_after: float | None) -> None:
    """The function has returned, the store is down, SIGTERM comes. Back in time: stored. Not: logged in full."""
    bucket = aws_env.new_bucket()
    with FaultProxy(aws_env.s3_url).serving() as proxy:
        proxy.down = True
        env = aws_env.env | {
            "AWS_ENDPOINT_URL_S3": proxy.url,
            "AGENTCORE_RL_SHUTDOWN_SECONDS": "6" if back_after else "1",
        }
        with run_agent(AGENT, tmp_path, **env) as agent:
            _, answer = agent.invoke({"n": 5, "seconds": 0, "_rollout": rollout(bucket)})
            deadline = time.monotonic() + 10
            while proxy.counts["down"] == 0 and time.monotonic() < deadline:
                time.sleep(0.02)
            assert agent.ping() == "HealthyBusy"
            agent.process.send_signal(signal.SIGTERM)
            if back_after:
                time.sleep(back_after)
                proxy.down = False
            agent.process.wait(20)
            logged = [line for line in agent.log_lines() if line.get("event") == "result_not_stored"]
    store = open_store(bucket)
    if back_after:
        assert json.loads(store.get(answer["result_key"]))["rewards"] == 0.005
        assert logged == []
    else:
        assert list(store.keys()) == []
        assert [line["document"]["rewards"] for line in logged] == [0.005]


def test_a_second_run_of_a_session_does_not_replace_its_result(tmp_path: Path) -> None:
    """The process was lost and the session invoked again: the first result stands."""
    store, session_id = tmp_path / "results", str(uuid.uuid4())
    answers = []
    for n in (1, 9):  # the second run would fail
        with run_agent(AGENT, tmp_path) as agent:
            answers.append(agent.invoke({"n": n, "seconds": 0, "_rollout": rollout(store)}, session_id))
            agent.wait_healthy()
    assert answers[0] == answers[1]
    assert json.loads((store / answers[0][1]["result_key"]).read_bytes())["echo"] == 1
