"""Agents written exactly as the seed documents show run as they are: real Strands, a real tool, real HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from strands import Agent, tool
from strands.hooks import AfterModelCallEvent, BeforeModelCallEvent, HookRegistry
from strands.models.openai import OpenAIModel
from strands.types.content import Message

from agentcore_rl_toolkit import StrandsAgentCoreRLApp, StrandsRolloutCollector
from agentcore_rl_toolkit.config import AgentCoreConfig
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


def agent(model: ScriptedModel, collector: StrandsRolloutCollector, prompt: str, *tools: Any) -> Agent:
    client_args = {"api_key": "EMPTY", "base_url": model.base_url, "max_retries": 0}
    policy = OpenAIModel(client_args=client_args, model_id="policy")
    return Agent(model=policy, system_prompt=prompt, tools=list(tools), hooks=[collector], callback_handler=None)


def delegates(body: dict[str, Any]) -> dict[str, Any]:
    """The outer agent asks its helper once; whoever is asked "fail" finds the engine broken."""
    system, last = body["messages"][0]["content"], body["messages"][-1]
    if "fail" in str(last["content"]):
        return {"status": 500, "error": {"message": "on fire", "type": "server_error"}}
    if "outer" in str(system) and last["role"] == "user":
        return {"tool_calls": [("ask_helper", {"question": "what?"})]}
    return {"content": "said by the " + ("outer" if "outer" in str(system) else "helper")}


def texts(collector: StrandsRolloutCollector) -> list[list[str]]:
    """Per call: the text of the first message sent, and what was answered."""
    calls = collector.get_rollout_data()
    return [[c["messages"][0]["content"][0]["text"], c["response"]["content"][0].get("text", "tool")] for c in calls]


def test_an_agent_called_as_a_tool_adds_to_the_same_invocation() -> None:
    collector = StrandsRolloutCollector()
    with ScriptedModel(delegates).serving() as model:

        @tool
        def ask_helper(question: str) -> str:
            """Ask the helper."""
            return str(agent(model, collector, "the helper")(question))

        outer = agent(model, collector, "the outer", ask_helper)
        for _ in range(2):  # the second time starts fresh
            outer.messages.clear()
            outer("begin")
            expected = [["begin", "tool"], ["what?", "said by the helper"], ["begin", "said by the outer"]]
            assert texts(collector) == expected


def test_a_call_that_failed_is_not_kept_and_the_next_invocation_starts_fresh() -> None:
    collector = StrandsRolloutCollector()
    with ScriptedModel(delegates).serving() as model:
        helper = agent(model, collector, "the helper")
        helper("hello")
        with pytest.raises(Exception, match="on fire"):
            helper("fail")
        assert collector.get_rollout_data() == []
        helper.messages.clear()
        helper("again")
        assert texts(collector) == [["again", "said by the helper"]]


def test_what_was_collected_stays_as_it_was_sent() -> None:
    collector = StrandsRolloutCollector()
    with ScriptedModel(delegates).serving() as model:
        helper = agent(model, collector, "the helper")
        helper("hello")
        for message in helper.messages:
            message["content"][0]["text"] = "changed by the agent"
        collector.get_rollout_data()[0]["messages"].append("changed by the reader")
        (call,) = collector.get_rollout_data()
    assert call["messages"] == [{"role": "user", "content": [{"text": "hello"}]}]
    assert call["response"] == {"role": "assistant", "content": [{"text": "said by the helper"}]}
    assert call["stop_reason"] == "end_turn"


def test_agents_that_run_at_the_same_time_keep_their_own_messages() -> None:
    collector, registry = StrandsRolloutCollector(), HookRegistry()
    collector.register_hooks(registry)
    one, two = (
        Agent(messages=[{"role": "user", "content": [{"text": text}]}], model=OpenAIModel(model_id="m"))
        for text in ("asked one", "asked two")
    )
    for agent in (one, two):
        registry.invoke_callbacks(BeforeModelCallEvent(agent=agent))
    for agent in (one, two):
        reply: Message = {"role": "assistant", "content": [{"text": "said"}]}
        stop = AfterModelCallEvent.ModelStopResponse(message=reply, stop_reason="end_turn")
        registry.invoke_callbacks(AfterModelCallEvent(agent=agent, stop_response=stop))
    assert texts(collector) == [["asked one", "said"], ["asked two", "said"]]


def test_the_argument_wins_over_the_config_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BASE_URL", raising=False)
    monkeypatch.delenv("MODEL_ID", raising=False)
    monkeypatch.delenv("MODEL_API_KEY", raising=False)
    plain = StrandsAgentCoreRLApp()
    configured = StrandsAgentCoreRLApp(config=AgentCoreConfig(base_url="http://config/v1", model_id="config"))
    monkeypatch.setenv("BASE_URL", "http://env/v1")  # after construction: it is read when the model is made
    monkeypatch.setenv("MODEL_ID", "env")
    monkeypatch.setenv("MODEL_API_KEY", "env-key")
    for app, kwargs, base_url, model_id in (
        (plain, {}, "http://env/v1", "env"),
        (configured, {}, "http://config/v1", "config"),
        (configured, {"client_args": {"timeout": 5}}, "http://config/v1", "config"),
        (configured, {"model_id": "given", "client_args": {"base_url": "http://given/v1"}}, "http://given/v1", "given"),
    ):
        model = app.create_openai_compatible_model(params={"temperature": 0.5}, **kwargs)
        key = "env-key" if base_url == "http://env/v1" else "EMPTY"  # a key goes to the endpoint it was set with
        assert model.client_args == {"api_key": key, "base_url": base_url} | kwargs.get("client_args", {})
        assert model.get_config() == {"model_id": model_id, "params": {"temperature": 0.5}}
