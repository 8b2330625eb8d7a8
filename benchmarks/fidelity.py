"""What a trainer gets of what was sampled, for ours and two peers, under what clients do to a conversation's history.

A scripted agent takes six turns with tools; its client echoes each answer a little differently (spaces in arguments,
dropped reasoning, …), retries, compacts its history, or runs a sub-agent. Every sampled token has its own logprob,
so `exact` can count the tokens of the agent's turns that are trained with that logprob, in the very context they were
sampled in. Beside it: rows, tokens in them (what training costs), tokens trained ÷ tokens of the agent's turns.
"""

from __future__ import annotations

import argparse
import json
import re
from typing import Any

from aiohttp import web
from gateway_parts import Gateway, free_port, gateway, tokenizer
from report import write
from sessions import CASES, SCRIPT, Agent, Call, Row, exact, parse

from agentcore_rl_toolkit.common.private_loop import PrivateLoop
from agentcore_rl_toolkit.common.text_table import format_table

Message = dict[str, Any]
GATEWAYS = ["ours", "rllm", "awslabs", "awslabs-linear"]


class Engine:
    """A model that samples the script, with vLLM's wire: ids in, or messages in, parsed as well as can be."""

    def __init__(self) -> None:
        from transformers import AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(tokenizer())
        self.calls: list[Call] = []
        self.port = free_port()

    def __enter__(self) -> Engine:
        self._loop = PrivateLoop("engine")
        self._loop.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/{path:.*}", self._health)
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/inference/v1/generate", self._generate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()

    async def _health(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _models(self, request: web.Request) -> web.Response:
        model = {"id": "stub", "object": "model", "created": 1, "owned_by": "vllm", "max_model_len": 32_768}
        return web.json_response({"object": "list", "data": [model]})

    def sample(self, prompt: list[int]) -> Call:
        markers = re.findall(r"\[(\w+)\]", self.tokenizer.decode(prompt[-400:]))
        ids = self.tokenizer.encode(SCRIPT[markers[-1]], add_special_tokens=False)
        ids.append(self.tokenizer.convert_tokens_to_ids("<|im_end|>"))
        number = len(self.calls)
        done = Call(prompt, ids, [-(1 + number * 1000 + n) / 2**20 for n in range(len(ids))])
        self.calls.append(done)
        return done

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        done = self.sample(body["prompt"])
        tokens = [self.tokenizer.decode([i]) for i in done.sampled]
        if body.get("stream"):
            return await self._stream(request, done, tokens)
        choice = self._completion_choice(done, tokens, 0, len(tokens)) | {"prompt_token_ids": done.prompt}
        return web.json_response(
            {"id": "c", "object": "text_completion", "created": 1, "model": "stub"} | usage(done, choice)
        )

    def _completion_choice(self, done: Call, tokens: list[str], start: int, stop: int) -> dict[str, Any]:
        ids, logprobs = done.sampled[start:stop], done.logprobs[start:stop]
        top = [{token: logprob} for token, logprob in zip(tokens[start:stop], logprobs, strict=True)]
        flat = {
            "tokens": tokens[start:stop],
            "token_logprobs": logprobs,
            "top_logprobs": top,
            "text_offset": [0] * len(ids),
        }
        finish = "stop" if stop == len(tokens) else None
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        return {
            "index": 0,
            "text": text,
            "logprobs": flat,
            "finish_reason": finish,
            "stop_reason": None,
            "token_ids": ids,
        }

    async def _stream(self, request: web.Request, done: Call, tokens: list[str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for n in range(len(tokens)):
            choice = self._completion_choice(done, tokens, n, n + 1)
            choice["prompt_token_ids"] = done.prompt if n == 0 else None
            event = {"id": "c", "object": "text_completion", "created": 1, "model": "stub", "choices": [choice]}
            await response.write(f"data: {json.dumps(event)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _generate(self, request: web.Request) -> web.Response:
        done = self.sample((await request.json())["token_ids"])
        content = [{"token": f"token_id:{i}", "logprob": p} for i, p in zip(done.sampled, done.logprobs, strict=True)]
        choice = {"index": 0, "token_ids": done.sampled, "logprobs": {"content": content}, "finish_reason": "stop"}
        return web.json_response({"request_id": "r", "choices": [choice]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        messages = [as_template(message) for message in body["messages"]]
        prompt = self.tokenizer.apply_chat_template(
            messages, tools=body.get("tools"), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        done = self.sample(list(prompt))
        message = parse(self.tokenizer.decode(done.sampled, skip_special_tokens=True), len(self.calls))
        content = [
            {"token": self.tokenizer.decode([i]), "logprob": p, "bytes": None, "top_logprobs": []}
            for i, p in zip(done.sampled, done.logprobs, strict=True)
        ]
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "logprobs": {"content": content}, "finish_reason": finish}
        head = {"id": "c", "object": "chat.completion", "created": 1, "model": "stub", "prompt_token_ids": done.prompt}
        return web.json_response(head | usage(done, choice | {"token_ids": done.sampled}))


def usage(done: Call, choice: dict[str, Any]) -> dict[str, Any]:
    counts = {"prompt_tokens": len(done.prompt), "completion_tokens": len(done.sampled)}
    return {"choices": [choice], "usage": counts | {"total_tokens": sum(counts.values())}}


def as_template(message: Message) -> Message:
    """A message as vLLM hands it to the template: text joined, arguments parsed."""
    content = message.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    changed = message | {"content": content or ""}
    if calls := message.get("tool_calls"):
        functions = [call["function"] for call in calls]
        changed["tool_calls"] = [{"function": f | {"arguments": json.loads(f["arguments"])}} for f in functions]
    return changed


# --- rows ----------------------------------------------------------------------------------------------------------


def rows(started: Gateway, agent: Agent) -> list[Row]:
    """A session's training rows, as each system's trainer gets them."""
    answer = started.ask(*started.read_path(agent.session))
    if started.name.startswith("rllm"):
        return fold(answer)
    made = []
    for row in answer["rows"]:
        missing = len(row["token_ids"]) - len(row["loss_mask"])  # the second peer leaves the first prompt out
        mask, logprobs = [0] * missing + row["loss_mask"], [0.0] * missing + row["logprobs"]
        made.append(Row(row["token_ids"], [int(one) for one in mask], logprobs))
    return made


def fold(traces: list[dict[str, Any]]) -> list[Row]:
    """The first peer gives turns; its trainer folds a turn into the last one if that is how its prompt starts."""
    made: list[Row] = []
    for trace in traces:
        prompt, sampled = trace["prompt_token_ids"], trace["completion_token_ids"]
        if not made or prompt[: len(made[-1].token_ids)] != made[-1].token_ids:
            made.append(Row([], [], []))
        row = made[-1]
        new = prompt[len(row.token_ids) :]
        row.token_ids += new + sampled
        row.loss_mask += [0] * len(new) + [1] * len(sampled)
        row.logprobs += [0.0] * len(new) + (trace["logprobs"] or [0.0] * len(sampled))
    return made


def measure(started: Gateway, engine: Engine, case: str) -> dict[str, Any]:
    conversation, change = CASES[case]
    engine.calls.clear()
    agent = Agent(started, engine, change, retries=case.startswith("HTTP retry"))
    expected = conversation(agent)
    made = rows(started, agent)
    sampled, trained = sum(len(turn.sampled) for turn in agent.taken), sum(sum(row.loss_mask) for row in made)
    return {
        "rows": len(made),
        "rows_expected": expected,
        "tokens": sum(len(row.token_ids) for row in made),
        "engine_sampled": sum(len(turn.sampled) for turn in engine.calls),
        "sampled": sampled,
        "trained": trained,
        "trained_share": round(trained / sampled, 3),
        "exact_share": round(exact(agent.taken, made) / sampled, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gateways", default=",".join(GATEWAYS))
    parser.add_argument("--quick", action="store_true", help="write no file")
    args = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {case: {} for case in CASES}
    names = args.gateways.split(",")
    with Engine() as engine:
        for name in names:
            with gateway(name, engine.port) as started:
                for case in CASES:
                    figures[case][name] = measure(started, engine, case)
    table = []
    for case, of in figures.items():
        cells = [
            f"{f['rows']} / {f['tokens']} / {f['trained_share']:.2f} / {f['exact_share']:.2f}" for f in of.values()
        ]
        table.append([case, str(next(iter(of.values()))["rows_expected"]), *cells])
    print("rows / tokens in them / trained ÷ sampled / exactly as sampled ÷ sampled\n")
    print(format_table(["what the client does", "rows expected", *names], table))
    if not set(GATEWAYS) <= set(names):
        print("not recorded: some gateways were left out")
    elif not args.quick:
        write("fidelity", {"cases": figures})


if __name__ == "__main__":
    main()
