"""Trains with vLLM on this CPU: each reply is sampled with exactly the weights that it names.

    python tests/real_vllm/train.py colocate         in the trainer's process
    python tests/real_vllm/train.py server           in a separate server, which TRL sends weights to
    python tests/real_vllm/train.py colocate async   while training runs, up to two updates behind; `server async` too

In an environment with vLLM and TRL; `run.py` runs all of them.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    said = ask(payload)
    return {"rewards": len(said) % 7, "response": said}
"""


AHEAD = 2


def main(mode: str, ahead: int) -> int:
    steps = 8 if ahead else 3
    with tempfile.TemporaryDirectory() as place, {"colocate": colocate, "server": serve}[mode](Path(place)) as settings:
        if ahead:
            settings |= {"async_steps": ahead, "concurrency": 4}  # few slots: some rollouts start after an update
        summary = run(Path(place), settings | {"steps": steps})
        assert (summary["steps"], summary["fidelity"], summary["failures"]) == (steps, 1.0, {}), summary
        check(Path(place) / "run", steps, ahead, closeness={"colocate": 0.5, "server": 1e-3}[mode])  # bfloat16, float32
    return 0


@contextlib.contextmanager
def colocate(folder: Path) -> Iterator[dict[str, Any]]:
    """A CPU build packs its weights when it loads them, and TRL writes new ones into the old place: no packing here."""
    import vllm._custom_ops

    vllm._custom_ops._supports_onednn = False
    options = {"vllm_max_model_length": 256, "vllm_gpu_memory_utilization": 0.2}
    yield {"vllm": "colocate", "options": options}


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[dict[str, Any]]:
    """vLLM as TRL's documentation starts it, but for the way that tensors take (see transfer.py)."""
    import transfer

    import agentcore_rl_toolkit.backends.trl.training as of_trl
    from agentcore_rl_toolkit.engine import tiny
    from support.process import clean_env, free_port, server

    plug_in = folder / "plug-in" / "transfer-0.dist-info"
    plug_in.mkdir(parents=True)
    (plug_in / "METADATA").write_text("Metadata-Version: 2.1\nName: transfer\nVersion: 0\n")
    (plug_in / "entry_points.txt").write_text("[vllm.general_plugins]\ntransfer = transfer:register\n")
    port = free_port()
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny.path()), "--host", "127.0.0.1",
        "--port", str(port), "--max-model-len", "256", "--dtype", "float32", "--enforce-eager",
        "--logprobs-mode", "processed_logprobs",
        "--weight-transfer-config", json.dumps({"backend": transfer.NAME}),
    ]  # fmt: skip
    path = f"{HERE}:{plug_in.parent}"
    told = {"PYTHONPATH": path, "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    told |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    transfer.send_from_cpu()
    of_trl.check_weight_transfer = lambda settings: None
    log = folder / "server.log"
    with server(command, port=port, log=log, env=clean_env(**told), ready="/health", seconds=400):
        yield {"vllm": f"http://127.0.0.1:{port}", "options": {"vllm_group_port": free_port()}}


def run(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    from agentcore_rl_toolkit.backends.trl import TrlSettings, train
    from support.agent import ASKING

    (folder / "rl_app.py").write_text(ASKING + AGENT)
    rows = [json.dumps({"prompt": f"row {number}"}) + "\n" for number in range(4)]
    (folder / "rows.jsonl").write_text("".join(rows))
    return train(
        TrlSettings(
            agent=str(folder / "rl_app.py"),
            data=str(folder / "rows.jsonl"),
            eval_data=str(folder / "rows.jsonl"),
            output=str(folder / "run"),
            rows_per_step=2,
            n=4,
            batch_size=4,
            max_tokens=12,
            learning_rate=2e-3,
            device="cpu",
            save_every=1,
            keep=9,
            **settings,
        )
    )


def check(run: Path, steps: int, ahead: int, closeness: float) -> None:
    """The logprobs of replies with one version are those of its weights and of no others.

    A reply that continues over an update keeps keys and values of older weights, so no weights give its logprobs.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from agentcore_rl_toolkit.engine import tiny
    from agentcore_rl_toolkit.rollout import read_rollouts

    checkpoints = [tiny.path(), *(run / "checkpoints" / f"checkpoint-{step}" for step in range(1, steps + 1))]
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in checkpoints]
    files = [run / "rollouts" / f"step-{step:06d}.jsonl" for step in range(steps)]
    files.append(run / "evaluations" / f"step-{steps:06d}.jsonl")  # with the weights of the last update
    off: dict[int, dict[int, float]] = {}
    later = mixed = 0
    for step, file in enumerate(files):
        for rollout in read_rollouts(file):
            for row in rollout.rows:
                mask = torch.tensor(row.loss_mask[1:]).bool()
                versions = {int(version) for version, _, _ in row.versions}
                assert step - (ahead if step < steps else 0) <= min(versions) <= max(versions) <= step
                mixed += len(versions) > 1
                if len(versions) > 1:
                    continue
                (version,) = versions
                later += step < steps and version > max(0, step - ahead)
                for other, model in enumerate(models):
                    gap = (logprobs(model, row.token_ids.tolist()) - torch.tensor(row.logprobs[1:]))[mask].abs().max()
                    known = off.setdefault(version, {})
                    known[other] = max(known.get(other, 0.0), float(gap))
    print(f"{mixed} replies with several versions")  # noqa: T201
    for version, gaps in off.items():
        shown = {other: round(gap, 5) for other, gap in gaps.items()}
        print(f"version {version}: largest difference to the weights of each step: {shown}")  # noqa: T201
        assert gaps[version] < closeness
        assert all(gap > 3 * gaps[version] for other, gap in gaps.items() if other != version)
    assert later or not ahead, "all rollouts began as early as they may"


def logprobs(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], AHEAD if "async" in sys.argv[2:] else 0))
