"""The app as its callers see it: a real process, real HTTP, a directory as the store."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.store import open_store
from support.agent import SESSION_HEADER, AgentProcess, rollout, run_agent

AGENT = """
import dataclasses, datetime, decimal, enum, numpy, pydantic
from pathlib import Path

@dataclasses.dataclass
class Point:
    x: int
    when: datetime.date

class Model(pydantic.BaseModel):
    name: str
    raw: bytes

class Crashing(RewardFunction):
    def __call__(self, **kwargs):
        return 1 / 0

class Unreachable(Exception):
    pass

def values():
    loop = []
    loop.append(loop)
    return {
        "rich": {"rewards": numpy.float32(0.5), "np": numpy.arange(3), "point": Point(1, datetime.date(2026, 1, 2)),
                 "model": Model(name="n", raw=b"\\x00"), "when": datetime.datetime(2026, 1, 2, 3, 4, 5),
                 "cost": decimal.Decimal("0.25"), "tags": {"b", "a"}, "raw": b"\\xff", "path": Path("/x"),
                 "nan": float("nan"), "ints": {1: "one"}},
        "list": [1, 2],
        "none": None,
        "nan": {"rewards": float("nan"), "kept": 1},
        "text reward": {"rewards": "1.0"},
        "dict reward": {"rewards": {"a": 1}},
        "object": {"rewards": 1, "steps": [{"ok": 1}, {"bad": object()}]},
        "loop": {"loop": loop},
        "per turn": {"rewards": [0, True, numpy.int64(2)]},
        "no reward": {"note": "only this"},
        "reserved": {"rewards": 1, "payload": "mine", "input_id": "mine", "stop_reason": "max_turns"},
        "own failure": {"status_code": 500, "stop_reason": "gave up"},
        "leaky": {"rewards": 1, "said": "the key is sk-leaky-123456", "api_key": "sk-other-12345", "url": "http://h/sessions/abc.s3cr3t/v1"},
    }

calls = 0

@app.rollout_entrypoint
def invoke_agent(payload, context):
    global calls
    calls += 1
    do = payload.get("do")
    if do == "calls":
        return {"calls": calls, "session": context.session_id}
    if do == "sleep":
        time.sleep(payload["seconds"])
        return {"rewards": 1.0}
    if do == "raise":
        raise ValueError("the tool is sk-leaky-123456 broken")
    if do == "crash in reward":
        return {"rewards": Crashing()(response_text="")}
    if do == "exit":
        sys.exit(3)
    if do == "change payload":
        payload["agent"] = object()
        payload["_rollout"]["exp_id"] = "elsewhere"
        return {"rewards": 1}
    if do == "stream":
        return (i for i in range(3))
    if do == "generate":
        return generate()
    return values()[do]

def generate():
    yield {"event": 1}
    yield {"rewards": 0.75}
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with run_agent(AGENT, tmp_path_factory.mktemp("agent")) as process:
        yield process


def run(agent: AgentProcess, store: Path, session_id: str | None = None, **payload: Any) -> dict[str, Any]:
    """Invoke a rollout, wait for its result, and give the stored document."""
    payload.setdefault("_rollout", rollout(store))
    status, answer = agent.invoke(payload, session_id)
    assert status == 200, answer
    assert answer["status"] == "processing"
    agent.wait_healthy()
    document: dict[str, Any] = json.loads((store / answer["result_key"]).read_bytes())
    return document


def test_a_rollout_is_answered_at_once_and_stored_later(agent: AgentProcess, tmp_path: Path) -> None:
    session_id = str(uuid.uuid4())
    payload = {"do": "sleep", "seconds": 0.5, "answer": "42", "_rollout": rollout(tmp_path, "row-7", model_id="m")}
    status, answer = agent.invoke(payload, session_id)
    key = f"exp/row-7/{session_id}.json"
    assert (status, answer) == (200, {"status": "processing", "s3_bucket": str(tmp_path), "result_key": key})
    assert agent.ping() == "HealthyBusy"
    assert not (tmp_path / key).exists()
    agent.wait_healthy()
    document = json.loads((tmp_path / key).read_bytes())
    times = document.pop("_rollout")
    assert document == {
        "rewards": 1.0,
        "status_code": 200,
        "stop_reason": "end_turn",
        "input_id": "row-7",
        "s3_bucket": str(tmp_path),
        "result_key": key,
        "payload": payload,
    }
    assert (times["schema_version"], times["exp_id"], times["session_id"]) == (1, "exp", session_id)
    assert times["started_at"] < times["finished_at"]
    assert open_store(str(tmp_path)).announcements("exp", 0) == [key]


def test_a_production_request_gets_the_value(agent: AgentProcess) -> None:
    session_id = str(uuid.uuid4())
    status, value = agent.invoke({"do": "calls"}, session_id)
    assert (status, value["session"]) == (200, session_id)
    assert agent.invoke({"do": "list"}) == (200, [1, 2])
    status, value = agent.invoke({"do": "raise"})
    assert (status, value) == (500, {"error": "the tool is sk-leaky-123456 broken"})
    status, body = agent.request("POST", "/invocations", json.dumps({"do": "stream"}).encode())
    assert (status, body) == (200, b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
    status, body = agent.request("POST", "/invocations", b"{not json")
    assert status == 400
    assert json.loads(body)["error"] == "Invalid JSON"


def test_a_repeated_invoke_starts_nothing_twice(agent: AgentProcess, tmp_path: Path) -> None:
    before = agent.invoke({"do": "calls"})[1]["calls"]
    session_id = str(uuid.uuid4())
    payload = {"do": "sleep", "seconds": 0.3, "_rollout": rollout(tmp_path)}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: agent.invoke(payload, session_id), range(8)))
    agent.wait_healthy()
    answers.append(agent.invoke(payload, session_id))  # a late retry, after the result is there
    agent.wait_healthy()
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 200
    assert agent.invoke({"do": "calls"})[1]["calls"] == before + 2  # the one rollout, and this question
    assert len(list(open_store(str(tmp_path)).keys())) == 1
    # Another row in the same session is another rollout.
    assert run(agent, tmp_path, session_id, do="per turn", _rollout=rollout(tmp_path, "other"))["status_code"] == 200
    assert len(list(open_store(str(tmp_path)).keys())) == 2


def test_values_people_return_are_stored(agent: AgentProcess, tmp_path: Path) -> None:
    document = run(agent, tmp_path, do="rich")
    assert document["status_code"] == 200
    wanted = {
        "rewards": 0.5,
        "np": [0, 1, 2],
        "point": {"x": 1, "when": "2026-01-02"},
        "model": {"name": "n", "raw": "AA=="},
        "when": "2026-01-02T03:04:05",
        "cost": 0.25,
        "tags": ["a", "b"],
        "raw": "/w==",
        "path": "/x",
        "nan": "NaN",
        "ints": {"1": "one"},
    }
    assert {name: document[name] for name in wanted} == wanted


def test_rewards_are_floats_or_absent(agent: AgentProcess, tmp_path: Path) -> None:
    assert run(agent, tmp_path, do="per turn")["rewards"] == [0.0, 1.0, 2.0]
    assert "rewards" not in run(agent, tmp_path, do="no reward")


@pytest.mark.parametrize(
    ("do", "kind", "type_", "says"),
    [
        ("raise", "agent_error", "ValueError", "the tool is *** broken"),
        ("list", "agent_error", "NotSerializable", "returned a list, not a dict"),
        ("none", "agent_error", "NotSerializable", "returned None, not a dict"),
        ("object", "agent_error", "NotSerializable", "steps[1].bad is a object"),
        ("loop", "agent_error", "NotSerializable", "loop[0] contains itself"),
        ("nan", "reward_error", "RewardInvalid", "rewards is nan"),
        ("text reward", "reward_error", "RewardInvalid", "rewards is a str"),
        ("dict reward", "reward_error", "RewardInvalid", "rewards is a dict"),
        ("crash in reward", "reward_error", "ZeroDivisionError", "division by zero"),
        ("exit", "agent_error", "SystemExit", "3"),
    ],
)
def test_failure_is_a_result(agent: AgentProcess, tmp_path: Path, do: str, kind: str, type_: str, says: str) -> None:
    settings = rollout(tmp_path, api_key="sk-leaky-123456")
    document = run(agent, tmp_path, do=do, _rollout=settings)
    assert document["status_code"] == 500
    assert (document["error"]["kind"], document["error"]["type"]) == (kind, type_)
    assert says in document["error"]["message"]
    assert says in document["stop_reason"]
    assert type_ in document["traceback"]
    assert document["payload"]["do"] == do
    if do == "nan":
        assert document["returned"] == {"rewards": "NaN", "kept": 1}


def test_reserved_keys_are_kept_apart(agent: AgentProcess, tmp_path: Path) -> None:
    document = run(agent, tmp_path, do="reserved")
    assert document["shadowed"] == {"payload": "mine", "input_id": "mine"}
    assert (document["input_id"], document["payload"]["do"]) == ("row", "reserved")
    assert (document["status_code"], document["stop_reason"]) == (200, "max_turns")
    document = run(agent, tmp_path, do="own failure")
    assert (document["status_code"], document["stop_reason"]) == (500, "gave up")
    assert document["error"] == {"kind": "agent_error", "type": "Returned", "message": "gave up"}


def test_secrets_reach_neither_store_nor_log(agent: AgentProcess, tmp_path: Path) -> None:
    settings = rollout(tmp_path, api_key="sk-leaky-123456", base_url="http://gw:9000/sessions/abc.s3cr3t/v1")
    for do in ("leaky", "raise"):
        stored = json.dumps(run(agent, tmp_path, do=do, _rollout=settings))
        for secret in ("sk-leaky", "s3cr3t", "sk-other"):
            assert secret not in stored
        assert "http://gw:9000/sessions/abc.***/v1" in stored
    # The rollouts above log nothing secret; the production request in another test raised with the key, unredacted,
    # because no request had named it as one. So only look at lines of rollouts.
    lines = [line for line in agent.log_lines() if "exp/row" in json.dumps(line)]
    assert lines
    assert "s3cr3t" not in json.dumps(lines)


def test_an_agent_may_change_its_payload(agent: AgentProcess, tmp_path: Path) -> None:
    document = run(agent, tmp_path, do="change payload")
    assert document["status_code"] == 200
    assert document["payload"] == {"do": "change payload", "_rollout": rollout(tmp_path)}


def test_a_generator_ends_with_its_result(agent: AgentProcess, tmp_path: Path) -> None:
    assert run(agent, tmp_path, do="generate")["rewards"] == 0.75


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"exp_id": "e", "input_id": "i"}, "s3_bucket is missing"),
        ({"exp_id": "e", "s3_bucket": "/tmp/x"}, "input_id is missing"),
        ({"input_id": "e", "s3_bucket": "/tmp/x"}, "exp_id is missing"),
        ({"exp_id": "", "input_id": "i", "s3_bucket": "/tmp/x"}, "exp_id is empty"),
        ({"exp_id": "../up", "input_id": "i", "s3_bucket": "/tmp/x"}, "starts with a dot"),
        ({"exp_id": "e", "input_id": "a/b", "s3_bucket": "/tmp/x"}, "contains a slash"),
        ({"exp_id": "e", "input_id": ["i"], "s3_bucket": "/tmp/x"}, "input_id must be a string"),
        ({"exp_id": "e", "input_id": "i", "s3_bucket": "relative/path"}, "is not the name of a store"),
        ({"exp_id": "e", "input_id": "i", "s3_bucket": 7}, "s3_bucket must be a string"),
        ({"exp_id": "e", "input_id": "i", "s3_bucket": "/tmp/x", "sqs_url": 7}, "sqs_url must be a string"),
        ("text", "must be an object, not str"),
        ([], "must be an object, not list"),
    ],
)
def test_a_bad_rollout_is_refused_and_says_why(agent: AgentProcess, settings: Any, says: str) -> None:
    status, body = agent.invoke({"do": "calls", "_rollout": settings})
    assert status == 400
    assert says in body["error"]
    assert agent.ping() == "Healthy"


def test_a_rollout_without_a_session_id_gets_one(agent: AgentProcess, tmp_path: Path) -> None:
    body = json.dumps({"do": "no reward", "_rollout": rollout(tmp_path) | {"input_id": 7}}).encode()
    status, answer = agent.request("POST", "/invocations", body)
    assert status == 200
    agent.wait_healthy()
    assert (tmp_path / json.loads(answer)["result_key"]).is_file()
    assert "/7/" in json.loads(answer)["result_key"]


def test_logs_are_json_with_session_and_request(agent: AgentProcess, tmp_path: Path) -> None:
    session_id, request_id = str(uuid.uuid4()), str(uuid.uuid4())
    headers = {SESSION_HEADER: session_id, "X-Amzn-Bedrock-AgentCore-Runtime-Request-Id": request_id}
    body = json.dumps({"do": "no reward", "_rollout": rollout(tmp_path)}).encode()
    agent.request("POST", "/invocations", body, headers)
    agent.wait_healthy()
    stored = [line for line in agent.log_lines() if line.get("message", "").startswith(f"stored exp/row/{session_id}")]
    assert len(stored) == 1
    assert (stored[0]["sessionId"], stored[0]["requestId"]) == (session_id, request_id)
    assert stored[0]["level"] == "INFO"


ASYNC_AGENT = """
config = AgentCoreConfig.load()
app = AgentCoreRLApp(config=config)

@app.rollout_entrypoint
async def invoke_agent(payload):
    do = payload.get("do")
    if do == "block":
        while not os.path.exists(payload["until"]):
            time.sleep(0.05)
    elif do == "cancel":
        asyncio.current_task().cancel()
        await asyncio.sleep(1)
    elif do == "events":
        return events()
    else:
        await asyncio.sleep(payload.get("seconds", 0))
    return {"rewards": 1.0}

async def events():
    yield {"event": 1}
    yield {"rewards": 0.25}
"""


def test_async_functions(tmp_path: Path) -> None:
    store = tmp_path / "results"
    with run_agent(ASYNC_AGENT, tmp_path) as agent:
        assert run(agent, store)["rewards"] == 1.0
        cancelled = run(agent, store, do="cancel")
        assert (cancelled["status_code"], cancelled["error"]["kind"]) == (500, "cancelled")
        assert run(agent, store, do="events")["rewards"] == 0.25
        status, body = agent.request("POST", "/invocations", b'{"do": "events"}')
        assert (status, body) == (200, b'data: {"event": 1}\n\ndata: {"rewards": 0.25}\n\n')
        # A function that blocks its event loop delays neither the answer nor the ping, nor a repeated invoke.
        until = tmp_path / "until"
        session_id, payload = str(uuid.uuid4()), {"do": "block", "until": str(until), "_rollout": rollout(store)}
        assert agent.invoke(payload, session_id) == agent.invoke(payload, session_id)
        assert agent.ping() == "HealthyBusy"
        until.touch()
        agent.wait_healthy()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_sigterm_stores_what_was_still_running(tmp_path: Path, kind: str) -> None:
    store = tmp_path / "results"
    function = (
        "def invoke_agent(payload):\n    time.sleep(60)"
        if kind == "sync"
        else "async def invoke_agent(payload):\n    await asyncio.sleep(60)"
    )
    with run_agent(f"@app.rollout_entrypoint\n{function}\n", tmp_path) as agent:
        keys = [agent.invoke({"_rollout": rollout(store, f"row-{i}")})[1]["result_key"] for i in range(3)]
        agent.process.send_signal(signal.SIGTERM)
        agent.process.wait(20)
    for key in keys:
        document = json.loads((store / key).read_bytes())
        assert (document["status_code"], document["error"]["kind"]) == (500, "session_lost")
        assert document["error"]["type"] == "SessionLost"
        assert "stopped while" in document["stop_reason"]


def test_what_cannot_be_stored_is_logged_in_full(tmp_path: Path) -> None:
    blocked = tmp_path / "a-file"
    blocked.write_text("not a directory")
    with run_agent("@app.rollout_entrypoint\ndef f(payload):\n    return {'rewards': 0.5}\n", tmp_path) as agent:
        _, answer = agent.invoke({"prompt": "p", "_rollout": rollout(blocked)})
        agent.wait_healthy()
        lines = [line for line in agent.log_lines() if line.get("event") == "result_not_stored"]
    assert len(lines) == 1
    assert lines[0]["key"] == answer["result_key"]
    assert lines[0]["document"]["rewards"] == 0.5
    assert lines[0]["document"]["payload"]["prompt"] == "p"


def test_only_allowed_stores(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    app = "@app.rollout_entrypoint\ndef f(payload):\n    return {'rewards': 1}\n"
    with run_agent(app, tmp_path, AGENTCORE_RL_ALLOWED_STORES=str(allowed)) as agent:
        for store, expected in (
            (allowed, 200),
            (allowed / "below", 200),
            (tmp_path / "allowed-not", 400),
            (tmp_path, 400),
        ):
            assert agent.invoke({"_rollout": rollout(store)})[0] == expected
        agent.wait_healthy()


def test_configured_names_are_secret(tmp_path: Path) -> None:
    app = "@app.rollout_entrypoint\ndef f(payload):\n    raise RuntimeError(payload['_rollout']['vault'])\n"
    with run_agent(app, tmp_path, AGENTCORE_RL_SECRET_KEYS="vault, pin") as agent:
        settings = rollout(tmp_path / "r", vault="open-sesame", pin="12")
        document = run(agent, tmp_path / "r", _rollout=settings)
    assert "open-sesame" not in json.dumps(document)
    assert document["payload"]["_rollout"]["pin"] == "***"
    assert document["stop_reason"] == "RuntimeError: ***"


def test_defaults_come_from_the_environment(tmp_path: Path) -> None:
    app = "@app.rollout_entrypoint\ndef f(payload):\n    return {'rewards': 1}\n"
    with run_agent(app, tmp_path, AGENTCORE_RL_S3_BUCKET=str(tmp_path / "r")) as agent:
        _, answer = agent.invoke({"_rollout": {"exp_id": "e", "input_id": "i"}})
        agent.wait_healthy()
    assert (tmp_path / "r" / answer["result_key"]).is_file()
    assert answer["s3_bucket"] == str(tmp_path / "r")


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
def test_on_loopback_no_web_page_invokes_it(tmp_path: Path, host: str, status: int) -> None:
    """In a container, requests come from the platform, under any name."""
    source = tmp_path / "rl_app.py"
    source.write_text(
        "import os\nfrom agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "app.rollout_entrypoint(lambda payload: {'ok': 1})\n"
        f"app.run(port=int(os.environ['PORT']), host={host!r})\n"
    )
    with run_agent(source, tmp_path) as agent:
        assert agent.invoke({})[0] == 200
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Host": "evil.example"}):
            answer = agent.request("POST", "/invocations", b"{}", headers)
            assert answer[0] == status, (headers, answer)
        assert agent.request("GET", "/ping", headers={"Host": "localhost"})[0] == 200
