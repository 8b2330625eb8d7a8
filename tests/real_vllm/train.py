"""Trains with vLLM on this CPU: each step is sampled with exactly the weights that the last one left.

    python tests/real_vllm/train.py colocate         in the trainer's process
    python tests/real_vllm/train.py server           in a separate server, which TRL sends weights to

In an environment with vLLM and TRL; `run.py` runs both.
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


def main(mode: str) -> int:
    with tempfile.TemporaryDirectory() as place, {"colocate": colocate, "server": serve}[mode](Path(place)) as settings:
        summary = run(Path(place), settings)
        assert (summary["steps"], summary["fidelity"], summary["failures"]) == (3, 1.0, {}), summary
        check(Path(place) / "run", closeness={"colocate": 0.5, "server": 1e-3}[mode])  # bfloat16, float32
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
            steps=3,
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


def check(run: Path, closeness: float) -> None:
    """Of each step's rollouts, the logprobs are those of the weights before it and of no others."""
    import torch
    from transformers import AutoModelForCausalLM

    from agentcore_rl_toolkit.engine import tiny
    from agentcore_rl_toolkit.rollout import read_rollouts

    checkpoints = [tiny.path(), *(run / "checkpoints" / f"checkpoint-{step}" for step in (1, 2, 3))]
    models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in checkpoints]
    files = [run / "rollouts" / f"step-{step:06d}.jsonl" for step in range(3)]
    files.append(run / "evaluations" / "step-000003.jsonl")  # with the weights of the last update
    for step, file in enumerate(files):
        off: dict[int, float] = {}
        for rollout in read_rollouts(file):
            for row in rollout.rows:
                mask = torch.tensor(row.loss_mask[1:]).bool()
                assert {version for version, _, _ in row.versions} == {str(step)}
                for other, model in enumerate(models):
                    gap = (logprobs(model, row.token_ids.tolist()) - torch.tensor(row.logprobs[1:]))[mask].abs().max()
                    off[other] = max(off.get(other, 0.0), float(gap))
        shown = {other: round(gap, 5) for other, gap in off.items()}
        print(f"step {step}: largest difference to the weights of each step: {shown}")  # noqa: T201
        assert off[step] < closeness
        assert all(gap > 10 * off[step] for other, gap in off.items() if other != step)


def logprobs(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
