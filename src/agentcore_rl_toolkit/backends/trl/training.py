"""One run: a model, an engine that samples from it, a gateway, sessions of the agent, and TRL between them.

Started by `accelerate launch` in several processes, each has its own gateway, sessions and engine, and its part of
every step; checkpoints, figures and what is shown are the first one's.
"""

from __future__ import annotations

import contextlib
import errno
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

from ...engine import Engine
from ...engine.remote.vllm import VllmEngine
from ...engine.transformers import TransformersEngine
from ...errors import AgentCoreRLError, ConfigError
from ...gateway.gateway import Gateway
from ...rollout import Group, RolloutRunner
from ..loop.report import Report
from ..loop.run_folder import RunFolder
from ..loop.training_loop import Loop
from .backend import TrlSettings
from .colocated import ColocatedEngine
from .config import trl_config
from .model import adapter, knows_tools, load
from .trainer import AgentGRPOTrainer

_INTERVAL = 0.25  # seconds between two pieces of a stream: nobody reads along, and each piece costs the sampler time


def train(settings: TrlSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train; gives the summary that is also written to `summary.json`."""
    with _with_hints():
        return _Run(settings, report).run()


def check_sender(settings: TrlSettings) -> None:
    """TRL sends weights to a server over NCCL, which knows GPUs alone."""
    if settings.device == "cpu" or not torch.cuda.is_available():
        hint = "set vllm=colocate, or leave it out"
        raise ConfigError("TRL sends weights to a vLLM server from a GPU, and there is none here", hint=hint)


class _Run:
    def __init__(self, settings: TrlSettings, report: Report | None) -> None:
        self.settings, self.state = settings, PartialState(cpu=settings.device == "cpu")
        first = self.state.is_main_process
        self.report = report if report is not None and first else Report(settings, quiet=not first)
        self.folder = RunFolder(settings, _whole, process=self.state.process_index)
        self.loop = Loop(
            settings,
            self.report,
            self.folder,
            update=self.update,
            process=self.state.process_index,
            processes=self.state.num_processes,
            gather=lambda one: gather_object([one]) if self.state.num_processes > 1 else [one],
        )

    def run(self) -> dict[str, Any]:
        settings = self.settings
        with self.state.main_process_first():
            start = self.folder.prepare()
        if settings.vllm not in (None, "colocate"):
            check_sender(settings)
        transformers.utils.logging.disable_progress_bar()
        transformers.set_seed(settings.seed)
        model, tokenizer = load(settings)
        if not knows_tools(tokenizer):
            self.report.say(
                f"warning: the chat template of {settings.model} leaves tools out, so an agent's tools will never be "
                "called. Give one that has them with chat_template, unless the agent has none."
            )
        self.trainer = AgentGRPOTrainer(
            model,
            self.loop.rows,
            self.run_groups,
            trl_config(settings, self.state.num_processes),
            processing_class=tokenizer,
            peft_config=adapter(settings),
            callbacks=[_Callback(self)],
        )
        self.engine = self._open_engine(tokenizer)
        with (
            Gateway(self.engine, tokenizer=tokenizer, **settings.gateway) as gateway,
            settings.client() as client,
            contextlib.closing(RolloutRunner(client, gateway, settings.rollout_options(None, self.version))) as runner,
            self.report,
        ):
            self.loop.runner, self.gateway = runner, gateway
            self.report.say(gateway.abilities.line)
            if start is None:
                self.loop.evaluate(0)
            else:
                self.loop.go_on(start)
            interrupted = self._train(start)
            step = self.version()
            if not interrupted:
                self._save()
                self.loop.evaluate(step)
            return self.loop.finish(step, interrupted=interrupted, decode=tokenizer.decode)

    def version(self) -> int:
        """The number of the current weights: updates so far."""
        return int(self.trainer.state.global_step)

    def update(self, step: int) -> None:
        """Let the engine sample with the weights of this step."""
        self.trainer.sync_sampler()
        if isinstance(self.engine, (TransformersEngine, ColocatedEngine)):
            self.engine.update(str(step))

    def run_groups(self, rows: list[dict[str, Any]], n: int, step: int) -> Sequence[Group]:
        """The trainer's rollouts of one step."""
        groups = self.loop.groups(rows, step)
        self.trainer.step_metrics = self.loop.metrics
        return groups

    def _open_engine(self, tokenizer: Any) -> Engine:
        settings, trainer = self.settings, self.trainer
        if settings.vllm == "colocate":
            engine = ColocatedEngine(trainer.vllm_generation, name=settings.model, interval=_INTERVAL)
            trainer.sampler_held = engine.held
            trainer.at_temperature = True  # TRL has vLLM return processed logprobs
            return engine
        if settings.vllm is not None:
            trainer.sampler_held = self._paused
            trainer.at_temperature = trainer.at_temperature or self._server_processes_logprobs()
            return VllmEngine(settings.vllm)
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            hint = "set vllm=colocate, or vllm=URL of a server"
            raise ConfigError("a model that is spread over processes can't be sampled from in one of them", hint=hint)
        trainer.at_temperature = True
        return TransformersEngine(
            trainer.accelerator.unwrap_model(trainer.model),
            tokenizer=tokenizer,
            name=settings.model,
            dtype=settings.dtype if settings.dtype != "float32" else None,
            max_batch=settings.concurrency,
            interval=_INTERVAL,
            at_temperature=True,
        )

    def _server_processes_logprobs(self) -> bool:
        """Whether a vLLM server's logprobs are at the temperature; every process gets the first one's answer."""
        mode = None
        if self.state.is_main_process:
            client = self.trainer.vllm_generation.vllm_client
            mode = client.get_server_info()["model_config"]["logprobs_mode"]
            if mode != "processed_logprobs":
                self.report.say(
                    f"warning: the vLLM server returns {mode}, so at temperature {self.settings.temperature:g} its "
                    "logprobs can't correct for the sampler. Start it with --logprobs-mode processed_logprobs."
                )
        return bool(broadcast_object_list([mode])[0] == "processed_logprobs")

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """Nothing is sampled while a server gets weights. It doesn't know what they are called; the gateway does."""
        self.gateway.pause()
        try:
            yield
        finally:
            self.gateway.resume(str(self.version()))

    def _train(self, start: int | None) -> bool:
        """Train; True if it was interrupted, with a checkpoint made."""
        try:
            self.trainer.train(resume_from_checkpoint=None if start is None else str(self.folder.checkpoint(start)))
        except KeyboardInterrupt:
            # The weights are those of the latest whole step: the one under way had not changed them yet.
            with _uninterrupted():
                self.report.say("interrupted; saving a checkpoint …")
                self._save()
            return True
        except AgentCoreRLError:
            if self.version():
                self._save()
            raise
        return False

    def _save(self) -> None:
        there = self.folder.checkpoint(self.version()).exists()
        self.state.wait_for_everyone()  # or one process would find what another has just begun
        if not there:
            self.trainer._save_checkpoint(self.trainer.model, trial=None)


class _Callback(transformers.TrainerCallback):  # type: ignore[misc]
    """Tells the report of each step, and evaluates in between."""

    def __init__(self, run: _Run) -> None:
        self._run = run

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs and state.is_world_process_zero:
            self._run.report.stepped(state.global_step, logs)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        every = self._run.settings.eval_every
        if every and state.global_step % every == 0 and state.global_step < state.max_steps:
            self._run.loop.evaluate(state.global_step)


def _whole(checkpoint: Path) -> bool:
    """Whether TRL has written a checkpoint to its end."""
    return (checkpoint / "trainer_state.json").is_file()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """A second Ctrl-C must not cut a checkpoint in half."""
    known = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, known)


@contextlib.contextmanager
def _with_hints() -> Iterator[None]:
    """Failures that have a setting to turn, with its name."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        hint = "lower batch_size or concurrency, or set gradient_checkpointing"
        raise AgentCoreRLError(f"out of memory: {str(error).splitlines()[0]}", hint=hint) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        hint = "make room, or set output, keep or save_every, and resume"
        raise AgentCoreRLError(f"the disk is full: {error}", hint=hint) from error
