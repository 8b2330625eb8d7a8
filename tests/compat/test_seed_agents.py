"""Agents written exactly as the seed documents show run as they are: real Strands, a real tool, real HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.agent import rollout, run_agent
from support.scripted_model import ScriptedModel

AGENTS = Path(__file__).parent / "seed_agents"


def solves_with_the_calculator(body: dict[str, Any]) -> dict[str, Any]:
    """Calls the tool first, then answers with what the tool said."""
    last = body["messages"][-1]
    if last["role"] != "tool":
        assert [tool["function"]["name"] for tool in body["tools"]] == ["calculator"]
        return {"tool_calls": [("calculator", {"expression": "6*7"})]}
    return {"content": "The answer is 42." if "42" in json.dumps(last) else "The tool did not answer."}


def breaks(body: dict[str, Any]) -> dict[str, Any]:
    return {"status": 500, "error": {"message": "the engine is on fire", "type": "server_error"}}


@pytest.mark.parametrize("generation", ["first", "second"])
def test_a_seed_agent_solves_a_problem_with_its_tool(tmp_path: Path, generation: str) -> None:
    with ScriptedModel(solves_with_the_calculator).serving() as model:
        env = {"BASE_URL": model.base_url, "MODEL_ID": "policy"} if generation == "first" else {}
        with run_agent(
            AGENTS / f"{generation}_generation.py", tmp_path, STRANDS_NON_INTERACTIVE="true", **env
        ) as agent:
            documents = []
            for i in range(2):
                settings = rollout(
                    tmp_path,
                    f"row-{i}",
                    base_url=model.base_url,
                    model_id="policy",
                    sampling_params={"temperature": 0.7},
                )
                payload = {"prompt": "What is six times seven?", "answer": "42", "_rollout": settings}
                _, answer = agent.invoke(payload)
                agent.wait_healthy(60)
                documents.append(json.loads((tmp_path / answer["result_key"]).read_bytes()))
    for document in documents:
        assert (document["status_code"], document["rewards"]) == (200, 1.0), document
    assert len(model.requests) == 4
    assert all(request["model"] == "policy" for request in model.requests)
    if generation == "second":
        assert all(request["temperature"] == 0.7 for request in model.requests)
        return
    first, second = (document["rollout_data"] for document in documents)
    assert len(first) == 2
    assert first[0]["messages"] == [{"role": "user", "content": [{"text": "What is six times seven?"}]}]
    assert first[0]["response"]["content"][0]["toolUse"]["input"] == {"expression": "6*7"}
    assert first[0]["stop_reason"] == "tool_use"
    assert [message["role"] for message in first[1]["messages"]] == ["user", "assistant", "user"]
    assert first[1]["response"]["content"] == [{"text": "The answer is 42."}]
    # The agent keeps its conversation; the collector starts fresh, so the second run shows two calls, not four.
    assert len(second) == 2


def test_an_engine_that_fails_is_no_fault_of_the_agent(tmp_path: Path) -> None:
    with (
        ScriptedModel(breaks).serving() as model,
        run_agent(AGENTS / "second_generation.py", tmp_path) as agent,
    ):
        settings = rollout(tmp_path, base_url=model.base_url, model_id="policy")
        _, answer = agent.invoke({"prompt": "hi", "answer": "42", "_rollout": settings})
        agent.wait_healthy(60)
    document = json.loads((tmp_path / answer["result_key"]).read_bytes())
    assert (document["status_code"], document["error"]["kind"]) == (500, "engine_error")
    assert "on fire" in document["stop_reason"]


@pytest.mark.parametrize(("env", "missing"), [({}, "BASE_URL and MODEL_ID"), ({"BASE_URL": "http://x/v1"}, "MODEL_ID")])
def test_a_model_without_an_endpoint_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], missing: str
) -> None:
    from agentcore_rl_toolkit import StrandsAgentCoreRLApp
    from agentcore_rl_toolkit.errors import ConfigError

    for name in ("BASE_URL", "MODEL_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"^{missing} must be set"):
        StrandsAgentCoreRLApp().create_openai_compatible_model()
    model = StrandsAgentCoreRLApp().create_openai_compatible_model(
        model_id="given", client_args={"base_url": "http://given/v1"}, params={"temperature": 0}
    )
    assert model.get_config()["model_id"] == "given"
