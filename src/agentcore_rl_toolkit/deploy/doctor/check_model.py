"""Checks of a model's chat template and tool parser against this agent. They need the tokenizer, not the weights.

The agent runs with the model's tokenizer in the gateway, and a script that replies in the model's format. A recorded
conversation is replayed the same way.
"""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

from ...engine.scripted import ScriptedEngine
from ...errors import AgentCoreRLError, ConfigError, RenderFault
from ...gateway.call.chat import ChatCall
from ...gateway.gateway import Gateway
from ...gateway.record.reasons import CHANGED
from ...gateway.record.trajectory import Fidelity
from ...gateway.render.renderer import ChatRenderer
from ...runtime.local import AgentSource
from .check_agent import CONTEXT, run_agent
from .finding import Check, failed, failed_with, ok, skipped
from .scripted_policy import USER, Tools, call_message, model_script, reply_ids

_OTHER_TEMPLATE = "give another template (--chat-template), or another model"
_OTHER_RENDERER = "choose another --renderer, or a model whose tool format it knows"


def check_tools(renderer: ChatRenderer, tools: Tools) -> Check:
    """Whether the template shows every tool, and the parser reads a call of it correctly."""
    if not tools:
        return skipped("tools", "the agent gives the model no tools")
    names = [tool["function"]["name"] for tool in tools]
    try:
        prompt = list(renderer.render(ChatCall([USER], tools)))
        shown = renderer.tokenizer.decode(prompt)
        for name, tool in zip(names, tools, strict=True):
            if name not in shown:
                return failed("tools", f"the model's chat template leaves out the tool {name!r}", _OTHER_TEMPLATE)
            if (problem := _parse_problem(renderer, prompt, tools, tool)) is not None:
                return failed("tools", f"a call of {name!r} in this model's format is {problem}", _OTHER_RENDERER)
    except RenderFault as fault:
        return failed("tools", str(fault), _OTHER_TEMPLATE)
    return ok("tools", f"calls of {', '.join(names)} are parsed correctly")


def _parse_problem(renderer: ChatRenderer, prompt: list[int], tools: Tools, tool: dict[str, Any]) -> str | None:
    message = call_message(tool)
    ids = reply_ids(renderer, [USER], message, tools)
    reply = renderer.parse(ids, prompt[-64:], ChatCall([USER], tools), "doctor")
    if reply.parse_failures or not reply.tool_calls:
        return f"not parsed: {renderer.tokenizer.decode(ids)[:120]!r}"
    wanted, found = message["tool_calls"][0]["function"], reply.tool_calls[0]
    if (found.name, json.loads(found.arguments)) != (wanted["name"], wanted["arguments"]):
        return f"parsed as {found.name}({found.arguments[:80]})"
    return None


def check_template(
    agent: AgentSource,
    payload: dict[str, Any],
    tools: Tools,
    renderer: ChatRenderer,
    seconds: float,
    protocol: str = "agentcore",
) -> tuple[Check, int | None]:
    """Whether the agent's rollouts bridge with this model's template; and the longest prompt."""
    try:
        run = run_agent(agent, payload, model_script(renderer, tools), renderer.tokenizer, seconds, protocol)
    except AgentCoreRLError as error:
        return failed("template", f"the agent can't run with this model's template: {error}"), None
    return check_fidelity("template", run.trajectories.fidelity), max(map(len, run.prompts), default=None)


def check_fidelity(name: str, fidelity: Fidelity) -> Check:
    """Whether every sampled token would be trained, in one row."""
    later = fidelity.bridges + fidelity.renders
    if fidelity.parse_failures:
        return failed(name, f"{fidelity.parse_failures} tool calls could not be parsed", _OTHER_RENDERER)
    if not fidelity.turns:
        return skipped(name, "the agent called no model")
    if avoidable := fidelity.renders - fidelity.unbridged.get(CHANGED, 0):
        rendered = f"{avoidable} of {later} later prompts would be rendered from scratch"
        text = f"{rendered}, so a rollout is {fidelity.rows} rows"
        fix = "have the agent send its history back unchanged, or choose another --renderer or --chat-template"
        return failed(name, text, fix)
    share = fidelity.trained / fidelity.sampled if fidelity.sampled else 0.0
    how = "every later prompt continues the exact tokens"
    if fidelity.renders:
        how = f"in {fidelity.rows} rows, because the agent has several conversations or cuts its history"
    return ok(name, f"{fidelity.turns} model calls, {how}, {share:.0%} would be trained")


def check_context(longest: int | None, context: int | None, max_tokens: int) -> Check:
    """Whether the longest prompt and a reply fit into the context."""
    if longest is None:
        return skipped("context", "the agent sent no prompts")
    if context is None:
        return skipped("context", "the model's context length is unknown; give --context-limit")
    total = f"with {max_tokens} for a reply, {longest + max_tokens} of {context}"
    text = f"the longest prompt has {longest} tokens; {total}"
    if longest + max_tokens > context:
        fix = "shorten prompts or tool descriptions, lower --max-tokens, or raise --context-limit"
        return failed("context", text, fix)
    return ok("context", text)


def check_conversation(path: Path, renderer: ChatRenderer, settings: dict[str, Any]) -> Check:
    """Whether a recorded conversation bridges, replayed as its agent sent it."""
    name = "conversation"
    try:
        messages, tools = _read_conversation(path)
        places = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i]
        if not places:
            fix = 'record a whole run: {"messages": […], "tools": […]}'
            return failed(name, f"{path} holds no reply of a model", fix)
        replies = [reply_ids(renderer, messages[:i], _with_parsed_arguments(messages[i]), tools) for i in places]
        engine = ScriptedEngine(replies, context_length=CONTEXT)
        with Gateway(engine, tokenizer=renderer.tokenizer, **settings) as gateway:
            session = gateway.open_session()
            for i in places:
                _post(session["base_url"], {"model": "scripted", "messages": messages[:i]}, tools)
            return check_fidelity(name, gateway.trajectories(session["session_id"]).fidelity)
    except ConfigError as error:
        return failed_with(name, error)
    except RenderFault as fault:
        return failed(name, str(fault), _OTHER_TEMPLATE)


def _read_conversation(path: Path) -> tuple[list[dict[str, Any]], Tools]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        messages, tools = (found, []) if isinstance(found, list) else (found["messages"], found.get("tools") or [])
        if not all(isinstance(message, dict) and "role" in message for message in messages):
            raise ValueError("a message must be an object with a role")
    except (OSError, ValueError, KeyError, TypeError) as error:
        hint = 'write {"messages": […], "tools": […]} in the format of Chat Completions'
        raise ConfigError(f"--conversation {path}: {error}", hint=hint) from None
    return messages, tools


def _with_parsed_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """An assistant's message with the arguments of its tool calls as objects, as templates take them."""
    calls = []
    for call in message.get("tool_calls") or []:
        arguments = call["function"]["arguments"]
        parsed = json.loads(arguments) if isinstance(arguments, str) else arguments
        calls.append(call | {"function": call["function"] | {"arguments": parsed}})
    reply = {"role": "assistant", "content": message.get("content") or ""}
    return reply | {"tool_calls": calls} if calls else reply


def _post(base_url: str, body: dict[str, Any], tools: Tools) -> None:
    data = json.dumps(body | {"tools": tools} if tools else body).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", data, {"Content-Type": "application/json"})
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except OSError as error:
        detail = error.read().decode(errors="replace")[:300] if hasattr(error, "read") else error
        raise ConfigError(f"the conversation can't be replayed: {detail}") from None
