"""slime's hooks over the whole path: its router, the gateway, sessions of a real agent, and samples at the end.

With SLIME_DIR, slime's own types and data source; else stand-ins of what it documents.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.backends.slime import generate_rollout, post_process
from agentcore_rl_toolkit.backends.slime.backend import SlimeSettings, write_rows
from agentcore_rl_toolkit.backends.slime.convert import flatten
from agentcore_rl_toolkit.backends.slime.generate import generate
from agentcore_rl_toolkit.backends.slime.hook_resources import close_resources
from agentcore_rl_toolkit.errors import ConfigError, RolloutsStopped
from agentcore_rl_toolkit.rollout import UNALTERED, read_rollouts
from agentcore_rl_toolkit.rollout.run_folder import open_run
from agentcore_rl_toolkit.rollout.run_folder.process_totals import read_totals
from agentcore_rl_toolkit.studio.guards.guards import read_findings
from support.agent import PROLOGUE
from support.runtime import local_runtime
from support.slime import CHECKOUT, Source, arguments, source_group
from support.slime.absent import stand_in
from support.slime.router import EXPERTS, LAYERS, FakeRouter, routes
from support.tokenizers import PLAIN_TEMPLATE, make_tokenizer

AGENT = """
import openai

@app.rollout_entrypoint
def invoke_agent(payload):
    settings = payload["_rollout"]
    with openai.OpenAI(base_url=settings["base_url"], api_key="EMPTY", max_retries=0) as model:

        def ask(*texts):
            roles = ("user", "assistant")
            asked = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
            reply = model.chat.completions.create(model=settings["model_id"], messages=asked, temperature=0.1)
            return reply.choices[0].message.content

        said = ask(payload["prompt"])
        if said == "raise":
            raise ValueError("broken on purpose")
        if said == "vanish":
            os._exit(9)
        if said == "sub":
            ask("start over")
            return {"rewards": 1.0}
        if said == "env":
            return {"rewards": float(os.environ["SCORE"])}
        if said == "on":
            return {"rewards": [0.5, float(ask(payload["prompt"], said, "more"))]}
    return {"rewards": float(said)}
"""


class Told:
    """What the model says: a row's lines, in the order in which its samples ask, and then "1"."""

    def __init__(self, **rows: list[str]) -> None:
        self.lines = {f"row-{name}": list(said) for name, said in rows.items()}

    def __call__(self, prompt: str) -> str:
        if "start over" in prompt:
            return "a new beginning"
        if "more" in prompt:
            return "0.25"
        name = next(name for name in [*self.lines, "row"] if name in prompt)
        return self.lines[name].pop(0) if self.lines.get(name) else "1"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer."""
    folder = tmp_path_factory.mktemp("slime")
    make_tokenizer(template=PLAIN_TEMPLATE).save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def arn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The agent's, in a runtime that AWS's variables lead to."""
    with local_runtime(tmp_path_factory.mktemp("agent"), AGENT) as user, pytest.MonkeyPatch.context() as variables:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            variables.delenv(name)
        known = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-west-2"}
        endpoints = ["AWS_ENDPOINT_URL_BEDROCK_AGENTCORE", "AWS_ENDPOINT_URL_S3"]
        for name, value in (known | dict.fromkeys(endpoints, user.runtime.endpoint_url)).items():
            variables.setenv(name, value)
        yield user.agent.arn
        close_resources()


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    with FakeRouter(make_tokenizer(template=PLAIN_TEMPLATE), Told()).serving() as serving:
        yield serving


Arguments = Callable[..., Namespace]


_numbers = itertools.count()


@pytest.fixture
def args(place: Path, arn: str, router: FakeRouter) -> Arguments:
    """slime's arguments for its own run."""

    def made(*, ours: dict[str, Any] | None = None, **changes: Any) -> Namespace:
        output = str(place / f"run-{next(_numbers)}")
        section = {"agent_runtime_arn": arn, "s3_bucket": "results", "output": output, "session_timeout": 60.0}
        port = int(router.url.rpartition(":")[2])
        known = {"agentcore": section | (ours or {}), "hf_checkpoint": str(place / "model"), "sglang_router_port": port}
        return arguments(**known | changes)

    return made


def rows(*names: str) -> list[dict[str, Any]]:
    return [{"prompt": f"row-{name}", "answer": name} for name in names]


def text(sample: Any, tokenizer: Any) -> str:
    """What of a sample is trained on."""
    response = sample.tokens[-sample.response_length :]
    return str(tokenizer.decode([token for token, bit in zip(response, sample.loss_mask, strict=True) if bit]))


def test_guards_judge_a_step_and_may_end_the_run(args: Arguments, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from agentcore_rl_toolkit.studio.guards import Finding\n"
        "def odd(run): return Finding('odd', run.rollouts[-1].key)\n"
    )
    ours: dict[str, Any] = {"guards_from": [str(path)]}
    output = generate_rollout(args(ours=ours), 0, Source(rows("a"), 2))
    assert output.metrics["agentcore/guard/odd"] == 1.0
    stopping = args(ours=ours | {"guard": {"odd": "stop"}})
    with pytest.raises(RolloutsStopped, match="guard odd: odd"):
        generate_rollout(stopping, 0, Source(rows("a"), 2))
    folder = Path(stopping.agentcore["output"])
    (found,) = read_findings(folder / "guards.jsonl")
    assert open_run(folder).find(found["example"]) is not None


def test_a_step(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["0", "on"], b=["sub", "0.5"])
    asked = args()
    output = generate_rollout(asked, 7, Source(rows("a", "b"), 2))
    assert type(output).__name__ == "RolloutFnTrainOutput"
    assert [sorted(len(rollout) for rollout in group) for group in output.samples] == [[1, 1], [1, 2]]
    samples = flatten(output.samples)
    assert {sample.group_index for sample in samples} == {0, 1}
    assert sorted({sample.rollout_id for sample in samples}) == [0, 1, 2, 3]
    assert {sample.status for sample in samples} == {type(samples[0]).Status.COMPLETED}
    said = {text(sample, router.tokenizer): sample for sample in samples}
    assert set(said) == {f"{x}<|im_end|>" for x in ("0", "sub", "a new beginning", "0.5")} | {
        "on<|im_end|>0.25<|im_end|>"
    }
    for sample in samples:
        assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
        assert sample.response == router.tokenizer.decode(sample.tokens[-sample.response_length :])
        assert [value != 0.0 for value in sample.rollout_log_probs] == [bool(bit) for bit in sample.loss_mask]
        assert sample.metadata["answer"] == "ab"[sample.group_index]
        assert set(sample.weight_versions) == {"3"}
    turns = said["on<|im_end|>0.25<|im_end|>"]
    assert turns.reward == 0.25
    assert turns.metadata["agentcore"]["rewards"] == [0.5, 0.25]
    assert 0 in turns.loss_mask
    assert turns.weight_versions == ["3", "3"]
    both = [said["sub<|im_end|>"], said["a new beginning<|im_end|>"]]
    assert len({sample.rollout_id for sample in both}) == 1
    assert [sample.reward for sample in both] == [1.0, 1.0]
    assert output.metrics["agentcore/rollouts/trained"] == 4
    assert output.metrics["agentcore/samples"] == 5
    kept = list(read_rollouts(Path(asked.agentcore["output"]) / "rollouts" / "step-000007.jsonl"))
    assert sorted(rollout.session_id for rollout in kept) == sorted({sample.session_id for sample in samples})


def test_an_agent_on_this_machine_gets_the_variables_that_no_configuration_shows(
    args: Arguments, router: FakeRouter, tmp_path: Path
) -> None:
    agent = tmp_path / "rl_app.py"
    agent.write_text(PROLOGUE + AGENT)
    router.script = Told(a=["env", "env"])
    ours = {"agent_runtime_arn": str(agent), "s3_bucket": str(tmp_path / "results"), "env": {"SCORE": "***"}}
    asked = args(ours=ours, rollout_batch_size=1)
    path = SlimeSettings.from_mapping(asked.agentcore).env_file
    path.parent.mkdir()
    path.write_text('{"SCORE": "0.75"}')
    samples = flatten(generate_rollout(asked, 0, Source(rows("a"), 2)).samples)
    assert [sample.reward for sample in samples] == [0.75, 0.75]


def test_slime_decides_how_tokens_are_sampled(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["0.125 is cut off"] * 2)
    asked = args(rollout_temperature=0.75, rollout_max_response_len=3, rollout_batch_size=1)
    output = generate_rollout(asked, 0, Source(rows("a"), 2))
    first, second = [body["sampling_params"] for path, body in router.requests if path == "/generate"]
    assert first.pop("sampling_seed") != second.pop("sampling_seed")
    assert first == second
    assert first == {
        **UNALTERED,
        "temperature": 0.75,
        "max_new_tokens": 3,
        "stop_token_ids": [router.tokenizer.eos_token_id],  # the gateway's own
    }
    assert {sample.status for sample in flatten(output.samples)} == {type(output.samples[0][0][0]).Status.TRUNCATED}


def test_failed_rollouts_are_left_out_and_the_batch_is_smaller(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["0", "raise", "1"], b=["raise", "raise", "0"], c=["0", "0", "1"])
    asked = args(rollout_batch_size=2, n_samples_per_prompt=3, global_batch_size=6)
    source = Source(rows("a", "b", "c"), 3)
    output = generate_rollout(asked, 0, source)
    samples = flatten(output.samples)
    assert {sample.group_index for sample in samples} == {0, 2}, "b has one rollout, which compares with nothing"
    assert source.groups == 3
    assert len(samples) == 5
    assert output.metrics["agentcore/failures/agent_error"] == 3
    raw, advantages = post_process(asked, samples)
    assert asked.global_batch_size == 5
    assert sorted(raw[:2]) == [0.0, 1.0]
    assert sum(advantages[:2]) == pytest.approx(0.0)
    assert max(advantages[:2]) == pytest.approx(0.5 / (0.5**0.5), rel=1e-4)
    generate_rollout(asked, 1, source)
    assert asked.global_batch_size == 6, "as configured, until the next rewards are known"


def test_sessions_that_vanish_are_run_again(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["vanish", "0"])
    output = generate_rollout(args(rollout_batch_size=1), 0, Source(rows("a"), 2))
    assert sorted(sample.reward for sample in flatten(output.samples)) == [0.0, 1.0]
    assert sorted(sample.rollout_id for sample in flatten(output.samples)) == [0, 1]


def test_staleness_counts_from_the_newest_weights(args: Arguments, router: FakeRouter) -> None:
    """The weights change between two calls of one rollout, which runs again."""

    class Updated(Told):
        def __call__(self, prompt: str) -> str:
            if "more" in prompt:
                router.weight_version = "9"
            return super().__call__(prompt)

    rewards = []
    for allowed in (5, 6):
        router.weight_version, router.script = "3", Updated(a=["on"])
        asked = args(ours={"max_staleness": allowed}, rollout_batch_size=1)
        rewards.append({sample.reward for sample in flatten(generate_rollout(asked, 0, Source(rows("a"), 2)).samples)})
    assert rewards == [{1.0}, {0.25, 1.0}]


def test_staleness_counts_from_the_trainers_weights(args: Arguments, router: FakeRouter) -> None:
    """An asynchronous run samples a step while it trains the one before; servers get weights every other step here."""
    asked = args(ours={"max_staleness": 1}, rollout_batch_size=1, update_weights_interval=2)
    source = Source(rows("a"), 2)
    for step in range(5, 9):
        assert len(generate_rollout(asked, step, source).samples) == 1
    with pytest.raises(RolloutsStopped, match="in a row could not be trained on; the last one: stale"):
        generate_rollout(asked, 9, source)
    router.weight_version = "4"
    assert len(generate_rollout(asked, 9, source).samples) == 1


def test_nothing_to_train_on_ends_the_run(args: Arguments, router: FakeRouter) -> None:
    asked = args(ours={"dynamic_sampling": True}, rollout_batch_size=1)
    source = Source(rows("a"), 2)
    with pytest.raises(RolloutsStopped, match="nothing to train on: no variance"):
        generate_rollout(asked, 0, source)
    assert source.groups == 3
    router.script = Told(a=["raise"] * 9)
    with pytest.raises(RolloutsStopped, match=r"[23] rollouts in a row"):
        generate_rollout(args(ours={"max_failures": 2}), 0, Source(rows("a"), 2))


def test_what_is_given_up_is_not_sampled_on(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["1", "0", "0.5 " * 400])
    router.pace = 0.01
    asked = args(ours={"oversample": 1}, rollout_batch_size=1, rollout_max_response_len=2000)
    output = generate_rollout(asked, 0, Source(rows("a"), 2))
    assert sorted(sample.reward for sample in flatten(output.samples)) == [0.0, 1.0]
    totals = read_totals(Path(asked.agentcore["output"]))
    assert (totals.used["sessions"], totals.causes.figures()) == (3, [])
    assert router.settled
    assert router.running == 0


def test_a_router_that_lists_no_models(args: Arguments, router: FakeRouter, place: Path) -> None:
    router.missing.add("/v1/models")
    output = generate_rollout(args(rollout_batch_size=1), 0, Source(rows("a"), 2))
    assert len(output.samples) == 1
    assert not [body for path, body in router.requests if path == "/generate" and "lora_path" in body]


def test_one_gateway_for_all_steps(args: Arguments, router: FakeRouter) -> None:
    asked = args(rollout_batch_size=1)
    source = Source(rows("a"), 2)
    first, second = (generate_rollout(asked, step, source) for step in range(2))
    assert [sample.rollout_id for sample in flatten([first.samples, second.samples])] == [0, 1, 2, 3]
    asks = [path for path, _ in router.requests if path == "/v1/models"]
    assert len(asks) == 1


def test_expert_routes(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["on", "0"])
    asked = args(rollout_batch_size=1, use_rollout_routing_replay=True)
    asked.num_layers, asked.moe_router_topk = LAYERS, EXPERTS
    samples = flatten(generate_rollout(asked, 0, Source(rows("a"), 2)).samples)
    assert len(samples) == 2
    for sample in samples:
        length = len(sample.tokens) - 1
        assert sample.rollout_routed_experts.shape == (length, LAYERS, EXPERTS)
        assert sample.rollout_routed_experts.reshape(-1).tolist() == routes(0, length)
    asked.num_layers = 5
    with pytest.raises(RolloutsStopped, match="no expert routes"):
        generate_rollout(args(rollout_batch_size=1, use_rollout_routing_replay=True), 0, Source(rows("b"), 2))


def test_evaluation(args: Arguments, router: FakeRouter, place: Path) -> None:
    from slime.utils.eval_config import EvalDatasetConfig

    router.script = Told(a=["0", "sub"], b=["raise", "1"])
    write_rows(place / "held-out.jsonl", rows("a", "b"))
    told = EvalDatasetConfig(
        "held-out", str(place / "held-out.jsonl"), n_samples_per_eval_prompt=2, temperature=0.5, max_response_len=14
    )
    asked = args(eval_datasets=[told])
    output = generate_rollout(asked, 4, None, evaluation=True)
    found = output.data["held-out"]
    assert [sorted(found["rewards"][:2]), sorted(found["rewards"][2:])] == [[0.0, 1.0], [0.0, 1.0]]
    assert found["truncated"] == [False] * 4
    assert len(found["samples"]) == 5
    assert output.metrics == {"eval/held-out/agentcore/failed": 1, "eval/held-out/agentcore/left_out": 0}
    params = [body["sampling_params"] for path, body in router.requests if path == "/generate"]
    assert {(known["temperature"], known["max_new_tokens"]) for known in params} == {(0.5, 14)}
    kept = list(read_rollouts(Path(asked.agentcore["output"]) / "evaluations" / "step-000004.jsonl"))
    assert len(kept) == 4


@pytest.mark.parametrize("log_passrate", [False, True])
def test_a_reward_that_can_not_be_computed_is_not_a_zero(
    args: Arguments, router: FakeRouter, place: Path, log_passrate: bool
) -> None:
    from slime.utils.eval_config import EvalDatasetConfig

    router.script = Told(a=["1", "nan"], b=["0.5", "raise"], c=["nan", "nan"])
    write_rows(place / "held-out.jsonl", rows("a", "b"))
    write_rows(place / "unjudged.jsonl", rows("c"))
    told = [
        EvalDatasetConfig(name, str(place / f"{name}.jsonl"), n_samples_per_eval_prompt=2)
        for name in ("held-out", "unjudged")
    ]
    output = generate_rollout(args(eval_datasets=told, log_passrate=log_passrate), 4, None, evaluation=True)
    (found,) = output.data.values()
    of_a, of_b = ([] if log_passrate else [1.0]), [0.0, 0.5]  # pass@k takes whole rows
    assert [*found["rewards"][: len(of_a)], *sorted(found["rewards"][len(of_a) :])] == [*of_a, *of_b]
    assert [sample.reward for sample in found["samples"]] == found["rewards"]
    assert output.metrics == {
        "eval/held-out/agentcore/failed": 2,
        "eval/held-out/agentcore/left_out": 1 + log_passrate,
        "eval/unjudged/agentcore/failed": 2,
        "eval/unjudged/agentcore/left_out": 2,
    }


def test_one_sample_at_a_time(args: Arguments, router: FakeRouter) -> None:
    router.script = Told(a=["sub"], b=["raise"], c=["vanish", "0.5"])
    asked = args(global_batch_size=3, rollout_batch_size=1, n_samples_per_prompt=3)
    (a, b, c), status = source_group(3), None
    for sample, row in zip((a, b, c), rows("a", "b", "c"), strict=True):
        sample.metadata = row
        status = type(sample).Status
    params = {"max_new_tokens": 16, "temperature": 1.0, "top_p": 1.0, "top_k": -1, "no_stop_trim": True}

    async def whole() -> list[list[Any]]:
        return await asyncio.gather(*(generate(asked, sample, params) for sample in (a, b, c)))

    done, broken, again = asyncio.run(whole())
    assert [sample.rollout_id for sample in done] == [0, 0]
    assert [sample.reward for sample in done] == [1.0, 1.0]
    (masked,) = broken
    assert masked.remove_sample
    assert (masked.status, masked.loss_mask, masked.reward) == (status.FAILED, [0], 0.0)
    assert len(masked.tokens) == 2
    assert masked.metadata["agentcore"]["why"] == "agent_error"
    assert [sample.reward for sample in again] == [0.5]
    _, advantages = post_process(asked, flatten([done, broken, again]))
    assert advantages[0] == advantages[1] > 0
    assert advantages[2] == 0.0
    assert advantages[3] == pytest.approx(-advantages[0])
    assert asked.global_batch_size == 2


@pytest.mark.skipif(CHECKOUT is None, reason="SLIME_DIR names no checkout")
@pytest.mark.filterwarnings("ignore")  # slime's and its dependencies'
def test_slimes_own_rollout_function(args: Arguments, router: FakeRouter) -> None:
    stand_in()
    from slime.rollout import sglang_rollout
    from slime.utils.http_utils import init_http_client

    router.script = Told(a=["sub"], b=["raise", "0.5"])
    asked = args(
        rollout_global_dataset=True,
        custom_generate_function_path="agentcore_rl_toolkit.backends.slime.generate.generate",
        sglang_server_concurrency=4,
        rollout_num_gpus=1,
        rollout_num_gpus_per_engine=1,
        sglang_dp_size=1,
        rollout_external=False,
        use_distributed_post=False,
        over_sampling_batch_size=2,
        **dict.fromkeys(["rollout_skip_special_tokens", "partial_rollout", "mask_offpolicy_in_partial_rollout"], False),
        **dict.fromkeys(["dynamic_sampling_filter_path", "rollout_sample_filter_path", "custom_rm_path"]),
        group_rm=False,
        rollout_sample_hook_path=[],
        rollout_all_samples_process_path=None,
    )
    init_http_client(asked)
    output = sglang_rollout.generate_rollout(asked, 0, Source(rows("a", "b"), 2))
    assert [sorted(len(rollout) for rollout in group) for group in output.samples] == [[1, 2], [1, 1]]
    samples = flatten(output.samples)
    assert sorted({sample.rollout_id for sample in samples}) == [0, 1, 2, 3]
    assert [sample.metadata["agentcore"]["why"] for sample in samples if sample.remove_sample] == ["agent_error"]
    _, advantages = post_process(asked, samples)
    assert [a for a, sample in zip(advantages, samples, strict=True) if sample.group_index == 1] == [0.0, 0.0]
    assert asked.global_batch_size == 2, "b has one rollout, which compares with nothing"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"agentcore": None}, "arguments don't name an agent"),
        ({"agentcore": {"s3_bucket": "b"}}, "agent is missing"),
        ({"agentcore": {"agent": "x", "nonsense": 1}}, "unknown setting 'nonsense'"),
        ({"rollout_top_p": 0.9}, "nucleus"),
    ],
)
def test_what_cannot_work_is_refused(args: Arguments, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        generate_rollout(args(**changes), 0, Source(rows("a"), 2))
