"""A trained model as a folder that Transformers, vLLM and Bedrock Custom Model Import load.

An adapter is merged into its base model. The tokenizer, its chat template and the run's sampling settings come along.
The folder appears under its name only after it was loaded and gave the logprobs of the policy that was trained.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from ..engine.checkpoints import is_adapter, resolve_model, step_checkpoint
from ..errors import AgentCoreRLError, ConfigError
from ..rollout import read_rollouts
from ..rollout.run_folder.run_text import read_object

DTYPES = ("float32", "bfloat16", "float16")
_ROWS, _TOKENS = 8, 256
_MERGED, _LOADED = 1e-3, 1e-4
"""The most that a logprob may change by merging, in float32, and by writing and loading."""
_PROMPT = [{"role": "user", "content": "What is the capital of France?"}]


@dataclass(frozen=True)
class ExportReport:
    """What was exported, and how it was checked."""

    model: str
    """The checkpoint."""
    output: str
    dtype: str
    merged_adapter: bool
    temperature: float
    """The one the policy was trained at, now the model's default."""
    compared_tokens: int
    source: str
    """Where these tokens come from."""
    largest_difference: float
    """Of a token's logprob, between the policy in float32 and the folder as loaded."""
    mean_difference: float


def export_model(run: str, output: Path, *, step: int | None = None, dtype: str | None = None) -> ExportReport:
    """Write the model of a run, of a checkpoint or of an adapter to the new folder `output`."""
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"--dtype {dtype}: unknown type", hint=f"choose {', '.join(DTYPES)}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists already", hint="remove it, or choose another --output")
    transformers_logging.disable_progress_bar()
    folder, base = resolve_model(run if step is None else step_checkpoint(run, step)), _base_of(run)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        hint = "name a run's output folder, or a model's"
        raise ConfigError(f"the tokenizer of {folder} can't be loaded: {error}", hint=hint) from error
    if tokenizer.chat_template is None:
        raise ConfigError(f"{folder} has no chat template", hint="train with --chat-template FILE")
    name = dtype or _dtype_of(base or folder)
    rows, source = _rows_to_compare(run, tokenizer)
    policy = _load(folder)
    trained = _logprobs(policy, rows)
    if is_adapter(folder):
        policy = policy.merge_and_unload()
        _check("merging the adapter", trained, _logprobs(policy, rows), _MERGED)
    _convert(policy, name)
    converted = _logprobs(policy, rows)
    temperature = float(_settings_of(run).get("temperature", 1.0))
    partial = output.with_name(f"{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(partial, policy, tokenizer, temperature)
        del policy
        loaded = _logprobs(AutoModelForCausalLM.from_pretrained(partial, dtype="auto").eval(), rows)
        _check("writing and loading the model", converted, loaded, _LOADED)
        _check_tokenizer(partial, tokenizer)
        differences = (trained - loaded).abs()
        report = ExportReport(
            model=folder,
            output=str(output),
            dtype=name,
            merged_adapter=is_adapter(folder),
            temperature=temperature,
            compared_tokens=len(differences),
            source=source,
            largest_difference=float(differences.max()),
            mean_difference=float(differences.mean()),
        )
        (partial / "export.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
        if output.is_dir():
            output.rmdir()
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return report


def _base_of(run: str) -> str | None:
    """The model that a run started from: its folder, or the name that the user gave, in older runs."""
    settings = _settings_of(run)
    found = settings.get("model_folder") or settings.get("model")
    return str(found) if found else None


def _settings_of(run: str) -> dict[str, Any]:
    """What `run.json` says of the run; nothing for other folders. A checkpoint's run is two folders above, or
    four."""
    folders = (Path(run), *Path(run).resolve().parents[:4])
    return next((found for folder in folders if (found := read_object(folder / "run.json")) is not None), {})


def _dtype_of(model: str) -> str:
    """The type that a model was saved in before training: trainers save every checkpoint in float32."""
    try:
        folder = resolve_model(model)
        if is_adapter(folder):
            folder = json.loads(Path(folder, "adapter_config.json").read_text())["base_model_name_or_path"]
        name = str(AutoConfig.from_pretrained(folder).dtype).removeprefix("torch.")
    except (OSError, ValueError, ConfigError) as error:
        hint = f"give the type to write, --dtype {', '.join(DTYPES)}, or run export where the training was started"
        raise ConfigError(
            f"the model {model}, which training started from, can't be loaded: {error}", hint=hint
        ) from error
    return name if name in DTYPES else "float32"


def _load(folder: str) -> Any:
    """The policy in float32, an adapter's unmerged."""
    try:
        if is_adapter(folder):
            from peft import AutoPeftModelForCausalLM

            return AutoPeftModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    except ImportError as error:
        raise ConfigError(f"{folder} is an adapter, which needs {error.name}", hint="pip install peft") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the model {folder} can't be loaded: {error}") from error


def _convert(model: Any, name: str) -> None:
    """Store the weights as another type. Buffers stay: a rounded rotary frequency would move every position."""
    model.config.dtype = getattr(torch, name)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, name))


def _rows_to_compare(run: str, tokenizer: Any) -> tuple[list[list[int]], str]:
    """Token ids of the run's last rollouts; of a prompt, if it has none."""
    files = sorted(Path(run, "rollouts").glob("step-*.jsonl"))
    rows = list(islice(_rows_in(files[-1]), _ROWS)) if files else []
    if rows:
        return rows, str(files[-1])
    text = tokenizer.apply_chat_template(_PROMPT, add_generation_prompt=True, tokenize=False)
    return [tokenizer.encode(text, add_special_tokens=False)[:_TOKENS]], "a prompt in the model's chat template"


def _rows_in(file: Path) -> Iterator[list[int]]:
    for rollout in read_rollouts(file):
        for row in rollout.rows:
            if len(row.token_ids) > 1:
                yield row.token_ids.tolist()[-_TOKENS:]


@torch.no_grad()  # type: ignore[untyped-decorator]
def _logprobs(model: Any, rows: Sequence[list[int]]) -> torch.Tensor:
    """The logprob of each token of each row but the first."""
    found = []
    for row in rows:
        ids = torch.tensor([row], device=model.device)
        scores = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        found.append(scores.gather(-1, ids[0, 1:, None])[:, 0].cpu())
    return torch.cat(found)


def _check(what: str, before: torch.Tensor, after: torch.Tensor, most: float) -> None:
    difference = float((before - after).abs().max())
    if not difference <= most:  # NaN fails too
        raise AgentCoreRLError(
            f"{what} changed a token's logprob by {difference:.2g}, and at most {most:g} is expected",
            hint="don't serve this model; export an earlier checkpoint with --step, and report this",
        )


def _check_tokenizer(folder: Path, tokenizer: Any) -> None:
    """Refuse a folder whose tokenizer renders a prompt as other tokens."""
    prompts = [
        one.encode(one.apply_chat_template(_PROMPT, add_generation_prompt=True, tokenize=False))
        for one in (tokenizer, AutoTokenizer.from_pretrained(folder))
    ]
    if prompts[0] != prompts[1]:
        raise AgentCoreRLError("the tokenizer renders a prompt differently after it was written")


def _write(folder: Path, model: Any, tokenizer: Any, temperature: float) -> None:
    ends = [getattr(one, "eos_token_id", None) for one in (model.generation_config, model.config, tokenizer)]
    flat = [end for found in ends for end in (found if isinstance(found, list) else [found]) if end is not None]
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=temperature,
        top_p=1.0,
        top_k=0,
        eos_token_id=list(dict.fromkeys(flat)),
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _edit(folder / "config.json", older_config)
    _edit(folder / "tokenizer_config.json", lambda config: older_tokenizer(config, tokenizer.chat_template))


def _edit(file: Path, change: Any) -> None:
    file.write_text(json.dumps(change(json.loads(file.read_text())), indent=2, ensure_ascii=False) + "\n")


def older_tokenizer(config: dict[str, Any], chat_template: str) -> dict[str, Any]:
    """A tokenizer's configuration with the class and the place of the template that Transformers before 5 knows."""
    same = {"TokenizersBackend": "PreTrainedTokenizerFast"}
    kind = config.get("tokenizer_class", "TokenizersBackend")
    return config | {"chat_template": chat_template, "tokenizer_class": same.get(kind, kind)}


def older_config(config: dict[str, Any]) -> dict[str, Any]:
    """A model's configuration with the names that Transformers before 5 reads, as Bedrock and older vLLM do.

    Without them those load the model silently with a default rotary base.

    >>> older_config({"dtype": "float32", "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})["rope_theta"]
    500000.0
    """
    older: dict[str, Any] = {"torch_dtype": config["dtype"]} if "dtype" in config else {}
    rope = config.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
        older |= {"rope_theta": rope["rope_theta"]}
        older |= {"rope_scaling": None if scaling.get("rope_type", "default") == "default" else scaling}
    return older | config
