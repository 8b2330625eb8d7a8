"""Trains with vLLM in the trainer's process, on this CPU: each step is sampled with the weights that the last one left.

    python tests/real_vllm/train_colocated.py        in an environment with vLLM and TRL; `run.py` runs it

A CPU build of vLLM packs its weights when it loads them, and TRL writes new ones into the old place; so packing is
switched off here. On a GPU there is none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

AGENT = """
@app.rollout_entrypoint
def invoke_agent(payload):
    said = ask(payload)
    return {"rewards": len(said) % 7, "response": said}
"""


def logprobs(model: Any, ids: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]


def main() -> int:
    import torch
    import vllm._custom_ops
    from transformers import AutoModelForCausalLM

    from agentcore_rl_toolkit import tiny
    from agentcore_rl_toolkit.backends.trl import TrlSettings, train
    from agentcore_rl_toolkit.rollout import read_rollouts
    from support.agent import ASKING

    vllm._custom_ops._supports_onednn = False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "rl_app.py").write_text(ASKING + AGENT)
        rows = [json.dumps({"prompt": f"row {number}"}) + "\n" for number in range(4)]
        (folder / "rows.jsonl").write_text("".join(rows))
        settings = TrlSettings(
            agent=str(folder / "rl_app.py"),
            data=str(folder / "rows.jsonl"),
            eval_data=str(folder / "rows.jsonl"),
            output=str(folder / "run"),
            vllm="colocate",
            steps=3,
            rows_per_step=2,
            n=4,
            batch_size=4,
            max_tokens=12,
            learning_rate=1e-2,
            device="cpu",
            save_every=1,
            keep=9,
            options={"vllm_max_model_length": 256, "vllm_gpu_memory_utilization": 0.2},
        )
        summary = train(settings)
        assert (summary["steps"], summary["fidelity"], summary["failures"]) == (3, 1.0, {}), summary
        checkpoints = [tiny.path(), *(folder / "run" / "checkpoints" / f"checkpoint-{step}" for step in (1, 2, 3))]
        models = [AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in checkpoints]
        files = [folder / "run" / "rollouts" / f"step-{step:06d}.jsonl" for step in range(3)]
        files.append(folder / "run" / "evaluations" / "step-000003.jsonl")  # with the weights of the last update
        for step, file in enumerate(files):
            off: dict[int, float] = {}
            for rollout in read_rollouts(file):
                for row in rollout.rows:
                    mask = torch.tensor(row.loss_mask[1:]).bool()
                    assert {version for version, _, _ in row.versions} == {str(step)}
                    for other, model in enumerate(models):
                        gap = (
                            (logprobs(model, row.token_ids.tolist()) - torch.tensor(row.logprobs[1:]))[mask].abs().max()
                        )
                        off[other] = max(off.get(other, 0.0), float(gap))
            shown = {other: round(gap, 5) for other, gap in off.items()}
            print(f"step {step}: largest difference to the weights of each step: {shown}")  # noqa: T201
            assert off[step] < 0.5  # vLLM samples in bfloat16 here
            assert all(gap > 10 * off[step] for other, gap in off.items() if other != step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
