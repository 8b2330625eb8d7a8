"""vLLM in the trainer's process: what holds its thread, and who hears of it when it ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

from agentcore_rl_toolkit.backends.trl.colocated import ColocatedEngine
from agentcore_rl_toolkit.common.private_loop import PrivateLoop
from agentcore_rl_toolkit.engine import IDS, Sampled, SampleRequest, Sampling
from agentcore_rl_toolkit.engine.reply_form import Form, structural_tag
from agentcore_rl_toolkit.errors import EngineError
from support.fake_colocated import FakeLlm, vllm_importable
from support.runtime import eventually

PATIENCE = 20


class Parts:
    """An engine on its own loop, and the vLLM below it."""

    def __init__(self) -> None:
        self.loop, self.llm = PrivateLoop("tests"), FakeLlm()
        self.engine = ColocatedEngine(SimpleNamespace(llm=self.llm), name="policy", interval=0.0)

    def sample(self, tokens: int = 4, **settings: Any) -> Any:
        async def whole() -> list[Sampled]:
            sampling = Sampling(max_tokens=tokens, ignore_eos=True, **settings)
            request = SampleRequest(array(IDS, [5, 6, 7]), sampling)
            return [item async for item in self.engine.sample(request)]

        return self.loop.submit(whole())

    def count(self, future: Any) -> int:
        return sum(len(item.token_ids) for item in future.result(PATIENCE))

    def run(self, coroutine: Any) -> Any:
        return self.loop.submit(coroutine).result(PATIENCE)


@pytest.fixture
def parts() -> Iterator[Parts]:
    with vllm_importable():
        made = Parts()
        made.run(made.engine.start())
        yield made
        made.llm.may_step.set()
        made.run(made.engine.close())
        made.loop.close()


def in_step(parts: Parts, **settings: Any) -> Any:
    """A sample whose first step is under way, and stays so until `may_step` is set."""
    parts.llm.may_step.clear()
    future = parts.sample(**settings)
    assert parts.llm.in_step.wait(PATIENCE)
    return future


def test_the_form_of_a_reply_reaches_it(parts: Parts) -> None:
    form = Form("optional", "<tool_call>", {"type": "object"})
    future = in_step(parts, form=form)
    ((_, _, params),) = parts.llm.running.values()
    assert parts.engine.forms
    assert params.structured_outputs.structural_tag == structural_tag(form)
    parts.llm.may_step.set()
    assert parts.count(future) == 4


def test_a_resume_without_a_pause_leaves_a_step_alone(parts: Parts) -> None:
    """It must not free what the stepping thread holds: the trainer would change weights in the middle of a step."""
    future = in_step(parts)
    parts.run(parts.engine.resume())
    held = threading.Thread(target=enter, args=(parts.engine,), daemon=True)
    held.start()
    held.join(0.2)
    assert held.is_alive()
    parts.llm.may_step.set()
    held.join(PATIENCE)
    assert not held.is_alive()
    assert parts.count(future) == 4


def enter(engine: ColocatedEngine) -> None:
    with engine.gate.held():
        pass


def test_a_pause_returns_when_the_step_is_over_and_no_other_begins(parts: Parts) -> None:
    future = in_step(parts)
    pausing = parts.loop.submit(parts.engine.pause())
    parts.run(asyncio.sleep(0))  # the loop takes tasks in their order: the pause has begun
    assert not pausing.done()
    parts.llm.may_step.set()
    pausing.result(PATIENCE)
    steps = parts.llm.steps
    assert steps < 4
    assert not parts.llm.in_step.is_set()
    parts.run(asyncio.sleep(0.1))
    assert (parts.llm.steps, future.done()) == (steps, False)
    parts.run(parts.engine.resume())
    assert parts.count(future) == 4


def test_a_pause_and_the_trainers_hold_may_overlap(parts: Parts) -> None:
    with parts.engine.gate.held():
        parts.run(parts.engine.pause())
        future = parts.sample()
        parts.run(parts.engine.resume())
        parts.run(asyncio.sleep(0.1))
        assert parts.llm.steps == 0  # the trainer still holds it
    assert parts.count(future) == 4
    parts.run(parts.engine.pause())
    with parts.engine.gate.held():
        later = parts.sample()
    parts.run(asyncio.sleep(0.1))
    assert parts.llm.steps == 4  # and here the pause does
    parts.run(parts.engine.resume())
    assert parts.count(later) == 4


def test_every_token_keeps_the_version_it_was_sampled_with(parts: Parts) -> None:
    """Also those that wait to be sent, or are sent at the end only, when the weights change."""
    parts.llm.pace = 0.01
    future = parts.sample(40)
    eventually(lambda: parts.llm.steps >= 5, PATIENCE)
    with parts.engine.gate.held():
        before = parts.llm.steps
        parts.engine.update("1")
    last = future.result(PATIENCE)[-1]
    assert last.versions == (("0", before), ("1", 40 - before))


def test_a_new_request_reuses_no_keys_and_values_of_earlier_weights(parts: Parts) -> None:
    """vLLM refuses to reset its prefix cache while a request runs, and TRL doesn't look at its answer."""
    running = in_step(parts)
    pausing = parts.loop.submit(parts.engine.pause())
    parts.run(asyncio.sleep(0))  # no further step begins
    parts.llm.may_step.set()
    pausing.result(PATIENCE)
    with parts.engine.gate.held():
        parts.llm.weights = "1"
        assert not parts.llm.reset_prefix_cache()
        parts.engine.update("1")
    later = parts.sample()
    parts.run(parts.engine.resume())
    assert (parts.count(running), parts.count(later)) == (4, 4)
    assert list(parts.llm.read_with.values()) == ["0", "1"]


@pytest.mark.parametrize("under_way", [False, True])
def test_a_pause_that_is_cancelled_is_none(parts: Parts, under_way: bool) -> None:
    future = in_step(parts)

    async def cancelled() -> None:
        task = asyncio.create_task(parts.engine.pause())
        await asyncio.sleep(0.05 if under_way else 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    parts.run(cancelled())
    parts.llm.may_step.set()
    assert parts.count(future) == 4
    parts.run(parts.engine.pause())
    later = parts.sample()
    parts.run(asyncio.sleep(0.1))
    assert parts.llm.steps == 4
    parts.run(parts.engine.resume())
    assert parts.count(later) == 4


@pytest.mark.parametrize("paused", [False, True])
def test_closing_it_ends_what_it_samples(parts: Parts, paused: bool) -> None:
    parts.llm.pace = 0.01
    running = parts.sample(400)
    eventually(lambda: parts.llm.steps > 0)
    if paused:
        parts.run(parts.engine.pause())
    waiting = parts.sample(400)
    parts.run(parts.engine.close())
    for future in (running, waiting):
        with pytest.raises(EngineError, match="closed") as caught:
            future.result(PATIENCE)
        assert caught.value.status == 503


def test_a_failure_reaches_everybody_and_it_goes_on(parts: Parts) -> None:
    parts.run(parts.engine.pause())
    futures = [parts.sample(), parts.sample()]
    parts.llm.fails = RuntimeError("out of memory")
    parts.run(parts.engine.resume())
    for future in futures:
        with pytest.raises(EngineError, match="out of memory"):
            future.result(PATIENCE)
    parts.llm.fails = None
    assert parts.count(parts.sample()) == 4
    assert len(parts.llm.aborted) == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what is left behind
def test_a_reader_whose_loop_is_closed_costs_the_others_nothing(parts: Parts) -> None:
    parts.llm.may_step.clear()

    async def leave() -> None:
        request = SampleRequest(array(IDS, [5, 6, 7]), Sampling(max_tokens=4, ignore_eos=True))
        reader = asyncio.ensure_future(anext(parts.engine.sample(request)))
        await asyncio.sleep(0.05)
        assert not reader.done()
        left.append(reader)

    left: list[Any] = []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    parts.llm.may_step.set()
    assert parts.count(parts.sample()) == 4
    left.clear()
    gc.collect()
