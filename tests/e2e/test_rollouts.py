"""Rollouts in groups, over a real gateway with a scripted engine and a real agent in sessions of the local runtime.

What the engine says is the agent's script: the samples of a row get that row's lines, in the order in which they ask.
"""

from __future__ import annotations

import itertools
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit import RolloutClient
from agentcore_rl_toolkit.cli import main
from agentcore_rl_toolkit.engine.base import SampleRequest
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine, ScriptedLine
from agentcore_rl_toolkit.errors import ConfigError, EngineError, RolloutsStopped, RuntimeFault, StoreMisconfigured
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.rollout import (
    Action,
    Group,
    Judge,
    Rollout,
    RolloutOptions,
    RolloutRunner,
    RolloutWriter,
    failure_table,
    read_rollouts,
    run_rollouts,
    step_metrics,
)
from agentcore_rl_toolkit.rollout.run_folder import RunWriter, open_run
from agentcore_rl_toolkit.runtime.local import LocalRuntime
from agentcore_rl_toolkit.types import Status
from support.agent import PROLOGUE
from support.gateway import MODEL, gateway, ids, text_of
from support.own_runtime import OwnRuntime
from support.runtime import eventually

AGENT = (
    PROLOGUE
    + """
import openai

@app.rollout_entrypoint
def invoke_agent(payload):
    settings = payload["_rollout"]
    with openai.OpenAI(base_url=settings["base_url"], api_key="EMPTY", max_retries=0) as model:

        def ask(text):
            asked = [{"role": "user", "content": text}]
            name = payload.get("model", settings["model_id"])
            reply = model.chat.completions.create(model=name, messages=asked, temperature=0.25)
            return reply.choices[0].message.content

        said = ask(payload["prompt"])
        print(f"{payload['prompt']} is told {said}")
        if said == "loud":
            os.write(1, b"x" * 300_000 + b"\\xff\\x00 \\x1b[31mthe end\\n")
            said = "1"
        if said == "raise":
            raise ValueError("broken on purpose")
        if said == "sleep":
            time.sleep(300)
        if said == "vanish":
            os._exit(9)
        if said == "none":
            return {"response": said}
        if said == "again":
            return {"rewards": 1.0, "response": ask("start over")}
    return {"rewards": float(said), "response": said, "sampling": settings.get("sampling_params")}
"""
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RolloutClient]:
    folder = tmp_path_factory.mktemp("agent")
    (folder / "rl_app.py").write_text(AGENT)
    with RolloutClient(folder / "rl_app.py", tmp_path_factory.mktemp("results"), "exp") as client:
        yield client


def sessions(client: RolloutClient) -> list[str]:
    """Of the client's own runtime, once it has one."""
    runtime = client.runtime
    return [session.id for session in runtime.sessions] if isinstance(runtime, LocalRuntime) else []


@pytest.fixture(autouse=True)
def nothing_is_left(client: RolloutClient) -> Iterator[None]:
    yield
    eventually(lambda: not sessions(client))


def told(watch: Callable[[], object] | None = None, **rows: list[str]) -> ScriptedEngine:
    """An engine that says a row's lines to those who ask with it, and then "1"."""
    lines = {name.replace("_", "-"): list(said) for name, said in rows.items()}

    def script(request: SampleRequest) -> ScriptedLine:
        if watch is not None:
            watch()
        prompt = text_of(request.prompt)
        if "start over" in prompt:
            return ScriptedLine(ids("a new beginning"))
        (name,) = re.findall(r"row-\w+", prompt)
        said = lines[name].pop(0) if lines.get(name) else "1"
        if said == "engine":
            return ScriptedLine([], fails=EngineError("the GPU is gone", status=500))
        return ScriptedLine(ids(said))

    return ScriptedEngine(script, weight_version="7")


def row(name: str) -> dict[str, Any]:
    return {"prompt": f"row-{name}"}


def statuses(group: Group) -> Counter[str]:
    return Counter(rollout.status.value for rollout in (*group.rollouts, *group.others))


def whole(running: Gateway) -> None:
    """Every session of the gateway is gone."""
    assert len(running.core.sessions) == 0


# Groups


def test_side_calls_are_left_out(client: RolloutClient) -> None:
    engine = told(row_a=["0", "1"])
    with gateway(engine) as running:
        options = {"side_calls": {"tools": "none"}, "keep_dropped": True}
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running, **options)
    for rollout in (*group.rollouts, *group.others):
        assert rollout.fidelity.sampled > 0
        assert rollout.fidelity.masked == {"side_call": rollout.fidelity.sampled}
        assert rollout.why == "nothing to train on"


def test_complete_groups_with_everything_in_them(client: RolloutClient) -> None:
    engine = told(row_a=["0", "1"], row_b=["0.5", "0.25"])
    ended: list[Rollout] = []
    with gateway(engine) as running:
        groups = list(
            run_rollouts(
                [row("a"), row("b") | {"input_id": "mine"}],
                2,
                client=client,
                gateway=running,
                on_rollout=ended.append,
                sampling={"max_tokens": 50, "temperature": 0.75},
                enforced={"temperature": 1.0},
            )
        )
        whole(running)
        assert running.core.sessions.opened == 4
    by_index = {group.index: group for group in groups}
    assert {index: sorted(group.rewards) for index, group in by_index.items()} == {0: [0.0, 1.0], 1: [0.25, 0.5]}
    assert (by_index[1].input_id, by_index[0].input_id[:7], by_index[1].payload["prompt"]) == (
        "mine",
        "000000-",
        "row-b",
    )
    for group in groups:
        assert (group.dropped, group.others) == (None, ())
        assert [rollout.sample for rollout in group.rollouts] == [0, 1]
        for rollout in group.rollouts:
            assert (rollout.status, rollout.action, rollout.error) == (Status.COMPLETED, Action.TRAIN, None)
            assert rollout.result is not None
            assert rollout.result["sampling"] == {"max_tokens": 50, "temperature": 0.75}
            (only,) = rollout.rows
            trained = [token for token, bit in zip(only.token_ids, only.loss_mask, strict=True) if bit]
            assert trained == ids(rollout.result["response"])
            assert only.versions == (("7", only.prompt_length, len(only.token_ids)),)
            assert rollout.fidelity.trained == rollout.fidelity.sampled == len(trained)
            assert rollout.seconds.keys() == {"open", "invoke", "session", "fold", "model"}
            assert all(taken >= 0 for taken in rollout.seconds.values())
            assert rollout.seconds["model"] <= rollout.seconds["invoke"] + rollout.seconds["session"]
    assert {request.sampling.temperature for request in engine.requests} == {1.0}
    assert {request.sampling.max_tokens for request in engine.requests} == {50}
    everything = [rollout for group in groups for rollout in group.rollouts]
    assert sorted(r.session_id for r in ended) == sorted(r.session_id for r in everything)
    assert len({r.session_id for r in ended}) == 4


def test_a_rollout_that_starts_over_keeps_both_conversations(client: RolloutClient) -> None:
    with gateway(told(row_a=["again", "0"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running)
    (folded,) = [rollout for rollout in group.rollouts if rollout.fidelity.turns == 2]
    assert [text_of(r.token_ids[r.prompt_length :]) for r in folded.rows] == [
        "again<|im_end|>",
        "a new beginning<|im_end|>",
    ]
    assert sum(r.weight for r in folded.rows) == pytest.approx(1.0)
    assert folded.rows[1].weight / folded.rows[0].weight == pytest.approx(
        folded.rows[1].trained / folded.rows[0].trained
    )
    assert folded.trained


def test_a_model_name_in_the_agents_code_is_served_by_the_policy(client: RolloutClient) -> None:
    engine = told()
    with gateway(engine) as running:
        (group,) = run_rollouts([row("a") | {"model": "gpt-4.1-mini"}], 2, client=client, gateway=running)
    assert statuses(group) == {"completed": 2}
    assert {request.model for request in engine.requests} == {MODEL}


def test_no_more_sessions_at_a_time_than_allowed(client: RolloutClient) -> None:
    at_once: list[int] = []
    with gateway(told(lambda: at_once.append(len(running.core.sessions)))) as running:
        groups = list(run_rollouts([row("a"), row("b")], 2, client=client, gateway=running, max_concurrent_sessions=1))
    assert len(groups) == 2
    assert set(at_once) == {1}


# Failures


def test_what_agents_do_is_masked_and_counts_in_no_mean(client: RolloutClient) -> None:
    with gateway(told(row_a=["raise", "none", "nan", "0", "0.5"])) as running:
        (group,) = run_rollouts([row("a")], 5, client=client, gateway=running)
        whole(running)
    assert statuses(group) == {"completed": 3, "agent_error": 1, "reward_error": 1}
    assert {r.why: r.action for r in group.rollouts if not r.trained} == {
        "agent_error": Action.MASK,
        "reward_error": Action.MASK,
        "no reward": Action.MASK,
    }
    errors = {r.why: r.error or "" for r in group.rollouts if not r.trained}
    assert "broken on purpose" in errors["agent_error"]
    assert "nan" in errors["reward_error"]
    assert (sorted(group.rewards), group.mean) == ([0.0, 0.5], 0.25)
    assert all(rollout.rows for rollout in group.rollouts)  # what it said is known, whatever became of it


def test_what_the_infrastructure_does_is_run_again(client: RolloutClient) -> None:
    with gateway(told(row_a=["engine", "vanish", "0", "0.5"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running)
        whole(running)
    assert sorted(group.rewards) == [0.0, 0.5]
    assert {r.status: r.action for r in group.others} == {
        Status.ENGINE_ERROR: Action.REFILL,
        Status.SESSION_LOST: Action.REFILL,
    }
    places = [r.sample for r in (*group.rollouts, *group.others)]
    assert sorted(places) == [0, 1, 2, 3]
    assert [r.sample for r in group.rollouts] == sorted(r.sample for r in group.rollouts)


def test_refills_are_bounded_and_what_stays_incomplete_is_never_handed_out_as_complete(client: RolloutClient) -> None:
    """Row a takes its engine down and is the only one to do so; for a second, it might be an outage."""
    ended: list[Rollout] = []
    with gateway(told(row_a=["0", *["engine"] * 99], row_b=["0", "0.5"])) as running:
        settings: dict[str, Any] = {"client": client, "gateway": running, "max_refills": 2, "outage_seconds": 30.0}
        groups = list(run_rollouts([row("a"), row("b")], 2, **settings, keep_dropped=True, on_rollout=ended.append))
        whole(running)
    dropped, kept = sorted(groups, key=lambda group: group.payload["prompt"])
    assert (kept.payload, kept.dropped) == (row("b"), None)
    assert (dropped.dropped, len(dropped.rollouts)) == ("incomplete", 1)
    counts = Counter(r.status for r in ended if r.payload == row("a"))
    assert counts[Status.COMPLETED] == 1
    assert 3 <= counts[Status.ENGINE_ERROR] <= 8
    assert counts.total() == len(dropped.rollouts) + len(dropped.others)


def test_an_outage_is_waited_for_and_costs_no_row_and_no_failure(client: RolloutClient) -> None:
    """More failures in a row than end a run, more of each row than it has refills; then all is well.

    When the first rollout works again, others of its row still wait to be run: to all of them it was one outage.
    """
    ended: list[Rollout] = []
    failures = iter(range(16))

    def script(request: SampleRequest) -> ScriptedLine:
        if next(failures, None) is not None:
            return ScriptedLine([], fails=EngineError("the GPU is gone", status=500))
        return ScriptedLine(ids("1"))

    with gateway(ScriptedEngine(script, weight_version="7")) as running:
        settings: dict[str, Any] = {"client": client, "gateway": running, "max_refills": 1, "max_failures": 2}
        groups = list(run_rollouts([row("a"), row("b")], 4, **settings, on_rollout=ended.append))
        whole(running)
    assert [group.rewards for group in groups] == [[1.0] * 4] * 2
    assert Counter(rollout.status for rollout in ended) == {Status.ENGINE_ERROR: 16, Status.COMPLETED: 8}


def test_an_outage_that_does_not_end_ends_the_run(client: RolloutClient) -> None:
    with gateway(told(row_a=["engine"] * 99, row_b=["engine"] * 99)) as running:
        with pytest.raises(RolloutsStopped) as caught:
            list(run_rollouts([row("a"), row("b")], 2, client=client, gateway=running, outage_seconds=2.0))
        whole(running)
    message = str(caught.value)
    assert re.match(
        r"for \d s, every rollout has lost its session or its engine; the last one: engine_error: ", message
    )
    assert "the GPU is gone" in message
    assert "hint: check that the runtime and the engine are up; an agent that ends its own process" in message


def test_during_an_outage_rollouts_are_started_less_and_less_often(tmp_path: Path) -> None:
    """A runtime that refuses at once would be asked a thousand times in two seconds."""

    class Down(OwnRuntime):
        async def invoke(self, session_id: str, payload: bytes, *, content_type: str = "") -> Any:
            self.invoked.append(session_id)
            raise RuntimeFault("nobody there", code="RuntimeClientError")

    runtime = Down(arn="arn:aws:bedrock-agentcore:local:000000000000:runtime/down")  # without a quota
    with RolloutClient(runtime, tmp_path, "exp") as unreachable, gateway(told()) as running:
        settings: dict[str, Any] = {"client": unreachable, "gateway": running, "outage_seconds": 2.0}
        with pytest.raises(RolloutsStopped, match="nobody there"):
            list(run_rollouts([row("a"), row("b")], 2, **settings))
    assert len(runtime.invoked) <= 4 * (2.0 / 0.25 + 2)


def test_a_row_that_can_not_be_sent_is_one_failed_rollout(client: RolloutClient, tmp_path: Path) -> None:
    rows: list[Any] = [row("a") | {"x": {1, 2}}, row("b"), {(1, 2): 3}, ["no", "row"], row("c") | {"input_id": "../up"}]
    path = tmp_path / "rollouts.jsonl"
    with gateway(told(row_b=["0", "1"])) as running, RolloutWriter(path) as writer:
        settings: dict[str, Any] = {"client": client, "gateway": running, "max_concurrent_sessions": 1}
        groups = list(run_rollouts(rows, 2, **settings, keep_dropped=True, on_rollout=writer.write))
        whole(running)
    by_index = {group.index: group for group in groups}
    assert sorted(by_index) == [0, 1, 2, 3, 4]
    assert sorted(by_index[1].rewards) == [0.0, 1.0]
    for index in (0, 2, 3, 4):
        assert statuses(by_index[index]) == {"agent_error": 2}
    read = list(read_rollouts(path))
    assert Counter(rollout.status for rollout in read) == {Status.AGENT_ERROR: 8, Status.COMPLETED: 2}


def test_a_store_that_can_not_work_ends_the_run_at_once(tmp_path: Path, aws_env: Any) -> None:
    runtime = OwnRuntime()
    with RolloutClient(runtime, "no-such-bucket-here", "exp") as nowhere, gateway(told()) as running:
        with pytest.raises(StoreMisconfigured, match="hint: create the bucket"):
            list(run_rollouts([row("a")], 2, client=nowhere, gateway=running))
        whole(running)
    assert runtime.invoked == []


def test_a_rollout_that_takes_too_long_is_stopped(client: RolloutClient) -> None:
    with gateway(told(row_a=["sleep", "sleep"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running, timeout=1.0, keep_dropped=True)
        whole(running)
    assert statuses(group) == {"timeout": 2}
    assert group.dropped == "too few to compare"
    assert all("had no result after 1 s" in str(rollout.error) for rollout in group.rollouts)
    eventually(lambda: not sessions(client))


def test_rows_of_which_no_group_is_left_are_an_error_with_the_reasons(client: RolloutClient) -> None:
    with gateway(told(row_a=["raise", "none"])) as running, pytest.raises(RolloutsStopped) as caught:
        list(run_rollouts([row("a")], 2, client=client, gateway=running))
    assert str(caught.value).startswith("every group was dropped:\n       1 × ")
    assert "agent_error: ValueError: broken on purpose" in str(caught.value)
    assert "1 × no reward" in str(caught.value)


def test_a_failure_that_the_table_trains_on(client: RolloutClient) -> None:
    judge = Judge(table=failure_table({"agent_error": "train"}), failed_reward=-1.0)
    with gateway(told(row_a=["raise", "1"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running, judge=judge)
    assert sorted(group.rewards) == [-1.0, 1.0]


def test_a_session_that_the_gateway_has_lost_is_run_again(client: RolloutClient) -> None:
    def forget_the_first() -> None:
        if running.core.sessions.opened == 1:
            (only,) = (one["session_id"] for one in running.core.sessions.latest(2))
            running.core.sessions.delete(only)

    with gateway(told(forget_the_first, row_a=["0", "0.5", "0.75"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running, max_concurrent_sessions=1)
    assert sorted(group.rewards) == [0.5, 0.75]
    assert [(r.status, "was closed" in str(r.error)) for r in group.others] == [(Status.ENGINE_ERROR, True)]


def test_too_many_failures_in_a_row_stop_the_run_with_one_traceback(client: RolloutClient) -> None:
    ended: list[Rollout] = []
    with gateway(told(row_a=["0", "0.5", *["raise"] * 20])) as running:
        with pytest.raises(RolloutsStopped) as caught:
            list(
                run_rollouts(
                    itertools.repeat(row("a")),
                    2,
                    client=client,
                    gateway=running,
                    max_failures=3,
                    max_concurrent_sessions=2,
                    on_rollout=ended.append,
                )
            )
        whole(running)
    message = str(caught.value)
    assert "3 rollouts in a row could not be trained on; the last one: agent_error: " in message
    assert message.count("Traceback (most recent call last)") == 1
    assert 'raise ValueError("broken on purpose")' in message
    assert "hint: run one by hand" in message
    failed = [r.status.value for r in ended if not r.trained]
    assert set(failed) == {"agent_error"}
    assert 3 <= len(failed) <= 5  # the other one at work may end meanwhile, and a success may have come between
    eventually(lambda: not sessions(client))


def test_failures_that_a_success_comes_between_stop_nothing(client: RolloutClient) -> None:
    said = ["raise", "0", "raise", "1", "raise", "0"]
    with gateway(told(row_a=said)) as running:
        runner = RolloutRunner(client, running, RolloutOptions(n=6, max_concurrent_sessions=1, max_failures=2))
        with closing(runner):
            (group,) = runner.run([row("a")])
            assert statuses(group) == {"completed": 3, "agent_error": 3}


def test_the_number_of_failures_is_that_of_the_call(client: RolloutClient) -> None:
    with gateway(told(row_a=["raise"] * 9)) as running, closing(RolloutRunner(client, running)) as runner:
        with pytest.raises(RolloutsStopped, match="1 rollouts in a row"):
            list(runner.run([row("a")], n=1, max_failures=1))
        runner.failures_reset()
        assert list(runner.run([row("a")], n=2, max_failures=3)) == []


def test_the_table_can_stop_the_run(client: RolloutClient) -> None:
    judge = Judge(table=failure_table({"agent_error": "stop"}))
    with gateway(told(row_a=["raise", "sleep"])) as running:
        with pytest.raises(RolloutsStopped, match=r"the failure table stops the run at agent_error: .*broken"):
            list(run_rollouts([row("a")], 2, client=client, gateway=running, judge=judge))
        whole(running)
    eventually(lambda: not sessions(client))


# What a session printed


def test_a_rollout_keeps_what_its_session_printed(
    client: RolloutClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[Rollout] = []
    lines = ["sleep", "raise", "vanish", "0.5"]
    with gateway(told(row_a=lines)) as running, RunWriter(tmp_path) as run, run.part("train", 0) as part:
        options = {"timeout": 5.0, "keep_dropped": True, "on_rollout": ended.append, "max_refills": 0}
        list(run_rollouts([row("a")], 4, client=client, gateway=running, **options))
        for rollout in ended:
            part.write(rollout)
    assert {r.status.value for r in ended} == {"timeout", "agent_error", "session_lost", "completed"}
    folder = open_run(tmp_path)
    kept = [folder.rollout(place).printed or "" for place in range(len(folder.table))]
    timed_out = folder.entry(int(folder.select(status="timeout")[0])).key
    assert main(["show", str(tmp_path), "--rollout", timed_out]) == 0
    assert "row-a is told sleep" in capsys.readouterr().out
    assert sorted(re.findall("row-a is told .*", "".join(kept))) == [f"row-a is told {said}" for said in sorted(lines)]


def test_a_rollout_that_is_no_longer_needed_keeps_what_its_session_printed(client: RolloutClient) -> None:
    def asleep() -> bool:
        return any("row-a is told sleep" in (client.printed(id) or "") for id in sessions(client))

    with gateway(told(row_a=["sleep", "0"], row_b=["0"])) as running:
        options = {"max_concurrent_sessions": 2, "on_rollout": lambda _: eventually(asleep)}
        (group,) = run_rollouts([row("a")], 1, client=client, gateway=running, oversample=1, **options)
    assert "row-a is told sleep\n" in (group.others[0].printed or "")


def test_only_the_end_of_what_a_session_printed_is_kept(client: RolloutClient) -> None:
    with gateway(told(row_a=["loud"])) as running:
        (group,) = run_rollouts([row("a")], 1, client=client, gateway=running)
    printed = group.rollouts[0].printed or ""
    assert "xx\ufffd\0 \x1b[31mthe end\n" in printed
    assert 60_000 < len(printed.encode()) <= 65536


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        (lambda id: b"\xff" * 99_999, "\ufffd" * (65536 // 3)),
        (lambda id: None, None),
        (lambda id: 1 // 0, None),
        (lambda id: "no bytes", None),
        (None, None),
    ],
)
def test_a_runtime_may_not_know_what_its_sessions_print(tmp_path: Path, printed: Any, kept: str | None) -> None:
    runtime = OwnRuntime()
    if printed is not None:

        async def call(id: str) -> Any:
            return printed(id)

        runtime.printed = call  # type: ignore[attr-defined]
    with RolloutClient(runtime, tmp_path, "exp") as client, gateway(told()) as running:
        (group,) = run_rollouts([row("a")], 1, client=client, gateway=running, keep_dropped=True)
    assert (group.rollouts[0].status, group.rollouts[0].printed) == (Status.COMPLETED, kept)


# More than asked for, and less


def test_over_sampling_stops_the_slowest(client: RolloutClient) -> None:
    ended: list[Rollout] = []
    with gateway(told(row_a=["sleep", "0", "0.5"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running, oversample=1, on_rollout=ended.append)
        whole(running)
    assert sorted(group.rewards) == [0.0, 0.5]
    (slow,) = group.others
    assert (slow.status, slow.action, slow.why) == (Status.CANCELLED, Action.MASK, "no longer needed")
    assert Counter(r.sample for r in ended) == {0: 1, 1: 1, 2: 1}
    stored = Path(client.store_url)
    eventually(lambda: {r.session_id for r in ended} <= {path.stem for path in stored.rglob("*.json")})
    assert len({r.session_id for r in ended}) == 3
    figures = step_metrics([group])
    assert (figures["rollouts/failed"], figures["left_out/no_longer_needed"]) == (0, 1)
    assert not any(name.startswith("failures/") for name in figures)
    eventually(lambda: not sessions(client))


def test_over_sampling_takes_the_place_of_failures(client: RolloutClient) -> None:
    with gateway(told(row_a=["raise", "0", "0.5"])) as running:
        (group,) = run_rollouts([row("a")], 2, client=client, gateway=running, oversample=1, max_concurrent_sessions=1)
    assert sorted(group.rewards) == [0.0, 0.5]
    assert [r.status for r in group.others] == [Status.AGENT_ERROR]


def test_dropped_groups_are_made_up_for_by_further_rows(client: RolloutClient) -> None:
    taken: list[int] = []

    def endless() -> Iterator[dict[str, Any]]:
        for number in itertools.count():
            taken.append(number)
            yield row(str(number))

    same, differing = ["1", "1"], ["0", "1"]
    with gateway(told(row_0=same, row_1=differing, row_2=same, row_3=["raise", "0"], row_4=differing)) as running:
        settings: dict[str, Any] = {"client": client, "gateway": running, "groups": 2, "max_concurrent_sessions": 2}
        groups = list(run_rollouts(endless(), 2, **settings, judge=Judge(dynamic_sampling=True)))
        whole(running)
    assert sorted(group.index for group in groups) == [1, 4]
    assert all(group.dropped is None and group.has_variance for group in groups)
    assert taken == list(range(5))  # as many as are still missing, no more


def test_a_step_has_a_token_budget(client: RolloutClient) -> None:
    """The first that doesn't fit ends it: with endless rows, waiting for one that does might take forever."""
    rows = (row("a") for _ in itertools.count())
    with gateway(told()) as running:
        settings: dict[str, Any] = {"client": client, "gateway": running, "max_concurrent_sessions": 1}
        (one,) = run_rollouts([row("a")], 1, **settings)
        budget = one.tokens * 5 // 2
        groups = list(run_rollouts(rows, 1, **settings, groups=5, max_batch_tokens=budget, keep_dropped=True))
        whole(running)
    assert [group.dropped for group in groups[:3]] == [None, None, "over the token budget"]
    assert all(group.dropped == "over the token budget" for group in groups[2:])
    assert len(groups) <= 4  # one may have been under way


# Leaving


def test_leaving_the_loop_stops_what_still_runs(client: RolloutClient) -> None:
    with gateway(told(row_a=["0", "0.5"], row_b=["sleep", "sleep"])) as running:
        with closing(run_rollouts([row("a"), row("b")], 2, client=client, gateway=running)) as groups:  # type: ignore[type-var]
            for group in groups:
                assert group.payload == row("a")
                eventually(lambda: len(sessions(client)) >= 2)
                break
        whole(running)
    eventually(lambda: not sessions(client))


def test_an_exception_stops_what_still_runs(client: RolloutClient) -> None:
    def fail(rollout: Rollout) -> None:
        raise KeyError("the disk is full")

    with gateway(told(row_a=["0"], row_b=["sleep", "sleep"])) as running:
        with pytest.raises(KeyError, match="the disk is full"):
            list(run_rollouts([row("b"), row("a")], 2, client=client, gateway=running, on_rollout=fail))
        whole(running)
    eventually(lambda: not sessions(client))


def test_ctrl_c_stops_what_still_runs(client: RolloutClient) -> None:
    with gateway(told(row_a=["sleep", "sleep"])) as running:

        def interrupt() -> None:
            eventually(lambda: len(sessions(client)) == 2 and running.core.sessions.opened == 2)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            list(run_rollouts([row("a")], 2, client=client, gateway=running))
        thread.join()
        whole(running)
    eventually(lambda: not sessions(client))


# Options


@pytest.mark.parametrize(
    "given",
    [
        {"n": 0},
        {"max_concurrent_sessions": 0},
        {"max_failures": 0},
        {"oversample": -1},
        {"max_refills": -1},
        {"outage_seconds": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ConfigError, match=f"{name} must be "):
        RolloutOptions(**given)


def test_unknown_options_are_refused(client: RolloutClient, tmp_path: Path) -> None:
    with gateway(told()) as running, pytest.raises(TypeError, match="concurency"):
        list(run_rollouts([row("a")], 1, client=client, gateway=running, concurency=3))
