"""A run with TRL: sampling with vLLM, and failures that a setting can avoid."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.machinery
import importlib.util
import socket
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from agentcore_rl_toolkit.backends.loop.report import Report
from agentcore_rl_toolkit.backends.trl import TrlSettings, train
from agentcore_rl_toolkit.backends.trl.backend import BACKEND
from agentcore_rl_toolkit.backends.trl.grpo_config import shares_only_gpu, trl_config
from agentcore_rl_toolkit.backends.trl.training import TrlRun, name_settings_to_change, save_once
from agentcore_rl_toolkit.engine.remote.vllm import VllmEngine
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.errors import AgentCoreRLError, ConfigError
from agentcore_rl_toolkit.gateway.gateway import Gateway
from agentcore_rl_toolkit.gateway.render.tokenizer import load_tokenizer
from support.fake_colocated import FakeLlm

_FULL = r"the disk is full.*\nhint: free some space"


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were installed; nothing here imports it."""
    real = importlib.util.find_spec

    def find_spec(name: str, *args: Any) -> Any:
        return importlib.machinery.ModuleSpec(name, None) if name == "vllm" else real(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)


def test_where_it_may_be() -> None:
    for place in ("colocate", "http://127.0.0.1:8000", "https://vllm.example.com"):
        assert TrlSettings(vllm=place).vllm == place
    with pytest.raises(ConfigError, match="vllm must be `colocate` or the URL of a server, not 'server'"):
        TrlSettings(vllm="server")


def test_it_has_to_be_installed() -> None:
    if importlib.util.find_spec("vllm") is None:
        with pytest.raises(
            ConfigError, match="sampling with vLLM needs vllm, which is not installed here\nhint: pip install vllm"
        ):
            trl_config(TrlSettings(vllm="colocate", device="cpu"))


def test_what_trl_is_told(vllm: None) -> None:
    config = trl_config(TrlSettings(vllm="colocate", device="cpu", options={"vllm_max_model_length": 99}))
    assert (config.use_vllm, config.vllm_mode, config.vllm_max_model_length) == (True, "colocate", 99)
    assert not config.vllm_importance_sampling_correction  # the ratio is to the sampler's logprobs already
    config = trl_config(TrlSettings(vllm="http://h:1", device="cpu"))
    assert (config.vllm_mode, config.vllm_server_base_url) == ("server", "http://h:1")
    with pytest.raises(ConfigError, match=r"options\.vllm_mode can't be given"):
        trl_config(TrlSettings(vllm="colocate", device="cpu", options={"vllm_mode": "server"}))
    with pytest.raises(ConfigError, match="would correct for the sampler twice"):
        trl_config(TrlSettings(vllm="colocate", device="cpu", options={"vllm_importance_sampling_correction": True}))
    assert not trl_config(TrlSettings(device="cpu")).use_vllm


def test_a_server_gets_its_weights_from_a_gpu(vllm: None, rows: str, tmp_path: Path) -> None:
    agent = tmp_path / "rl_app.py"
    agent.touch()
    url = "http://127.0.0.1:1"
    settings = TrlSettings(agent=str(agent), data=rows, output=str(tmp_path / "run"), vllm=url, device="cpu")
    for start in (BACKEND.plan, partial(train, report=Report(settings, quiet=True))):
        with pytest.raises(ConfigError, match="from a GPU, and this machine has none"):
            start(settings)


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("{}\n" * 8)
    return str(path)


def with_server(rows: str, temperature: float, logprobs_mode: str, said: list[str] | None = None) -> TrlRun:
    """A run that samples from a server which returns logprobs in that mode."""
    run = TrlRun(TrlSettings(data=rows, vllm="http://127.0.0.1:1", temperature=temperature, device="cpu"))
    run.report = SimpleNamespace(say=(said if said is not None else []).append)  # type: ignore[assignment]
    info = {"model_config": {"logprobs_mode": logprobs_mode}}
    generation = SimpleNamespace(vllm_client=SimpleNamespace(get_server_info=lambda: info))
    run.trainer = SimpleNamespace(  # type: ignore[assignment]
        sampler_held=None,
        state=SimpleNamespace(global_step=7),
        at_temperature=temperature == 1.0,
        vllm_generation=generation,
    )
    assert isinstance(run.open_engine(None), VllmEngine)
    return run


@pytest.mark.parametrize(
    ("temperature", "mode", "usable"),
    [(1.0, "raw_logprobs", True), (0.7, "processed_logprobs", True), (0.7, "raw_logprobs", False)],
)
def test_a_servers_logprobs_are_used_if_they_are_at_the_temperature(
    rows: str, temperature: float, mode: str, usable: bool
) -> None:
    said: list[str] = []
    assert with_server(rows, temperature, mode, said).trainer.at_temperature is usable
    assert [line.startswith("warning: the vLLM server returns raw_logprobs") for line in said] == [True] * (not usable)


def test_sampling_pauses_while_a_server_gets_weights(rows: str) -> None:
    run = with_server(rows, 1.0, "processed_logprobs")
    with Gateway(ScriptedEngine([]), tokenizer=load_tokenizer("tiny")) as run.loop.gateway:
        core = run.loop.gateway.core
        with contextlib.suppress(OSError), run.trainer.sampler_held():
            assert core.gate.paused
            raise OSError("lost on the way")
        assert (core.gate.paused, core.gate.version) == (False, "7")


def test_a_colocated_engine_samples_nothing_with_new_weights_before_they_have_their_version(rows: str) -> None:
    run = TrlRun(TrlSettings(data=rows, vllm="colocate", device="cpu"))
    generation = SimpleNamespace(llm=FakeLlm())
    state = SimpleNamespace(global_step=7)
    run.trainer = SimpleNamespace(state=state, vllm_generation=generation)  # type: ignore[assignment]
    engine = run.open_engine(None)
    with contextlib.suppress(OSError), run.trainer.sampler_held():
        raise OSError("lost on the way")
    assert asyncio.run(engine.info()).weight_version == "0"
    with run.trainer.sampler_held():
        pass
    assert asyncio.run(engine.info()).weight_version == "7"


def test_out_of_memory_names_the_setting_to_lower(tmp_path: Path) -> None:
    with (
        pytest.raises(AgentCoreRLError, match=r"out of memory.*\nhint: lower batch_size"),
        name_settings_to_change(tmp_path),
    ):
        torch.empty(1 << 60)
    with pytest.raises(AgentCoreRLError, match="out of memory: CUDA"), name_settings_to_change(tmp_path):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
    with pytest.raises(AgentCoreRLError, match="out of memory: CUDA error: CUBLAS"), name_settings_to_change(tmp_path):
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    with (
        pytest.raises(AgentCoreRLError, match=r"the disk is full.*\nhint: free some space"),
        name_settings_to_change(tmp_path),
    ):
        Path("/dev/full").write_text("x")


@pytest.mark.parametrize("save", [torch.save, save_file])
def test_a_checkpoint_that_does_not_fit_on_the_disk_says_so(tmp_path: Path, save: Any) -> None:
    """Neither raises an OSError, whatever is wrong."""
    weights, nowhere = {"a": torch.zeros(1)}, tmp_path / "nowhere" / "weights"
    full = Path("/proc")  # has no space at all
    with (
        pytest.raises(AgentCoreRLError, match=r"the disk is full.*\nhint: free some space"),
        name_settings_to_change(full),
    ):
        save(weights, nowhere)
    with pytest.raises((RuntimeError, SafetensorError)), name_settings_to_change(tmp_path):
        save(weights, nowhere)


def test_other_failures_stay_as_they_are(tmp_path: Path) -> None:
    for error in (RuntimeError("else"), FileNotFoundError(2, "else"), ValueError("else")):
        with pytest.raises(type(error), match="else"), name_settings_to_change(tmp_path):
            raise error


@pytest.mark.parametrize(
    ("url", "gpus", "shared"),
    [
        ("http://127.0.0.1:8000", 1, True),
        ("http://localhost:8000/", 1, True),
        ("http://0.0.0.0:8000", 1, True),
        ("http://127.0.0.1:8000", 2, False),
        ("http://127.0.0.1:8000", 0, False),  # unknown: no such files on this system
        ("http://203.0.113.9:8000", 1, False),  # reserved for examples
        ("http://not..a.name:8000", 1, False),
    ],
)
def test_a_server_on_this_machines_only_gpu_is_refused(tmp_path: Path, url: str, gpus: int, shared: bool) -> None:
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(gpus))):
        (tmp_path / name).touch()
    assert shares_only_gpu(url, tmp_path) is shared


def test_so_is_one_under_this_machines_own_name(tmp_path: Path) -> None:
    try:
        socket.getaddrinfo(socket.gethostname(), 0)
    except OSError:
        pytest.skip("this machine doesn't know its own name")
    (tmp_path / "nvidia0").touch()
    assert shares_only_gpu(f"http://{socket.gethostname()}:8000", tmp_path)


def test_every_process_saves_its_part_of_a_checkpoint(tmp_path: Path) -> None:
    """The second process looks when the first one waits for it, or has saved already."""
    checkpoint, meeting, saved = tmp_path / "checkpoint-1", threading.Barrier(2), []
    first_is_on = threading.Event()

    def save(process: int) -> None:
        checkpoint.mkdir(exist_ok=True)
        saved.append(process)
        first_is_on.set()

    def wait() -> None:
        first_is_on.set()
        meeting.wait(20)

    first = threading.Thread(target=save_once, args=(checkpoint, lambda: save(1), wait))
    first.start()
    assert first_is_on.wait(20)
    save_once(checkpoint, lambda: save(2), wait)
    first.join(20)
    assert sorted(saved) == [1, 2]
    save_once(checkpoint, lambda: save(3), lambda: None)
    assert sorted(saved) == [1, 2]
