"""A run with TRL: the model, the engine that samples from it, and TRL's trainer, in the shared training loop.

`accelerate launch` may start several processes. Each has its own gateway, sessions and engine, and runs its part of
every step; the first process writes checkpoints and figures and shows the table.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError

from ...engine import Engine
from ...engine.checkpoints import is_written
from ...engine.remote.vllm import VllmEngine
from ...engine.transformers import TransformersEngine
from ...engine.transformers.model_runner import out_of_memory
from ...errors import AgentCoreRLError, ConfigError, NoStepsLeft
from ...rollout import Group
from ..loop.checkpoint_folder import CheckpointFolder
from ..loop.report import Report
from ..loop.training_loop import TrainingLoop, delay_interrupt
from .backend import TrlSettings
from .colocated import ColocatedEngine
from .grpo_config import (
    adapter_config,
    check_weight_transfer,
    load_policy,
    loss_truncation,
    renders_tools,
    trl_config,
)
from .sampling_copy import SamplingCopy
from .teacher import Distillation, open_teacher
from .trainer import AgentGRPOTrainer

# It prints a row of each step that has a failed rollout and blames the reward. The report has the failures, counted.
logging.getLogger("trl.trainer.grpo_trainer").addFilter(
    lambda record: "All reward functions returned None" not in record.getMessage()
)
_FULL_BYTES = 1 << 20
_STREAM_SECONDS = 0.25  # between two pieces of a stream: agents rarely watch it, and each piece costs the sampler time


def train(settings: TrlSettings, *, report: Report | None = None) -> dict[str, Any]:
    """Train and return the summary, which is also written to `summary.json`."""
    with name_settings_to_change(settings.folder):
        return TrlRun(settings, report).run()


class TrlRun:
    trainer: AgentGRPOTrainer
    engine: Engine
    _copy: SamplingCopy | None = None

    def __init__(self, settings: TrlSettings, report: Report | None = None) -> None:
        self.settings, self.state = settings, PartialState(cpu=settings.device == "cpu")
        first = self.state.is_main_process
        self.report = report if report is not None and first else Report(settings, quiet=not first)
        self.folder = CheckpointFolder(settings.folder, is_written, resume=settings.resume, first=first)
        self.loop = TrainingLoop(
            settings,
            self.report,
            self.folder,
            version=self.version,
            update_engine=self._update_engine,
            process=self.state.process_index,
            processes=self.state.num_processes,
            gather=lambda one: gather_object([one]) if self.state.num_processes > 1 else [one],
        )

    def run(self) -> dict[str, Any]:
        with contextlib.ExitStack() as stack:
            with self.state.main_process_first():
                start = stack.enter_context(self.folder.opened())
            return self._run(start)

    def _run(self, start: int | None) -> dict[str, Any]:
        settings = self.settings
        check_weight_transfer(settings)
        transformers.utils.logging.disable_progress_bar()
        transformers.set_seed(settings.seed)
        model, tokenizer = load_policy(settings)
        if not renders_tools(tokenizer):
            self.report.say(
                f"warning: the chat template of {settings.model} leaves tools out, so the model will never call an "
                "agent's tools. If the agent has any, give a template that renders them with chat_template."
            )
        callback = _LoopCallback(self.loop)
        self.trainer = AgentGRPOTrainer(
            model,
            self.loop.rows,
            self._run_groups,
            trl_config(settings, self.state.num_processes),
            processing_class=tokenizer,
            peft_config=adapter_config(settings),
            callbacks=[callback],
            credit=settings.turn_credit,
            distillation=open_distillation(settings, int(model.get_input_embeddings().num_embeddings)),
        )
        self.trainer.add_advantages, self.trainer.judge = self.loop.add_advantages, self.loop.judge
        self.trainer.add_ratios = self.loop.add_ratios
        self.engine = self.open_engine(tokenizer)
        if settings.async_steps:
            self.trainer.truncation = loss_truncation(self.trainer.args)
        if settings.async_steps or settings.teacher is not None:
            check_logprobs(self.trainer.at_temperature, "async_steps" if settings.async_steps else "teacher")
        checkpoint = None if start is None else str(self.folder.checkpoint(start))

        def train() -> None:
            with contextlib.closing(callback), contextlib.suppress(NoStepsLeft):
                self.trainer.train(resume_from_checkpoint=checkpoint)
            if callback.interrupted:
                raise KeyboardInterrupt

        return self.loop.run(self.engine, tokenizer, start, train=train, save=self._save)

    def version(self) -> int:
        """The number of the current weights: updates so far."""
        return int(self.trainer.state.global_step)

    def open_engine(self, tokenizer: Any) -> Engine:
        """The engine that samples with the trainer's weights, as `vllm` says."""
        settings, trainer = self.settings, self.trainer
        if settings.vllm == "colocate":
            engine = ColocatedEngine(trainer.vllm_generation, name=settings.model, interval=_STREAM_SECONDS)
            trainer.sampler_held = partial(self._engine_held, engine)
            trainer.at_temperature = True  # TRL makes vLLM return processed logprobs
            return engine
        if settings.vllm is not None:
            trainer.sampler_held = self._gateway_paused
            trainer.at_temperature = trainer.at_temperature or self._server_processes_logprobs()
            # Frozen replies continue with the new weights; waiting for them would hold up training.
            return VllmEngine(settings.vllm, pause_mode="keep" if settings.async_steps else "wait")
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            hint = "set vllm=colocate, or vllm=URL of a server"
            raise ConfigError("one process can't sample from a model that is sharded over several", hint=hint)
        trainer.at_temperature = True
        policy = trainer.accelerator.unwrap_model(trainer.model)
        self._copy = SamplingCopy(policy) if settings.async_steps else None
        return TransformersEngine(
            policy if self._copy is None else self._copy.module,
            tokenizer=tokenizer,
            name=settings.model,
            dtype=settings.dtype if settings.dtype != "float32" else None,
            max_batch=settings.first_concurrency,
            interval=_STREAM_SECONDS,
            at_temperature=True,
            own_stream=self._copy is not None,
        )

    def _update_engine(self, step: int) -> None:
        self.trainer.sync_sampler()
        if isinstance(self.engine, TransformersEngine) and self._copy is not None:
            if self.engine.weight_version != str(step):
                with self.engine.updating(str(step)):
                    self._copy.update()
        elif isinstance(self.engine, TransformersEngine):
            self.engine.update(str(step))

    def _run_groups(self, rows: list[dict[str, Any]], n: int, step: int) -> Sequence[Group]:
        groups = self.loop.groups(step)  # `row_order.py` has chosen the rows, not TRL's sampler
        self.trainer.step_metrics = self.loop.metrics
        return groups

    def _server_processes_logprobs(self) -> bool:
        """Whether a vLLM server's logprobs include the temperature; every process gets the first one's answer."""
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
    def _engine_held(self, engine: ColocatedEngine) -> Iterator[None]:
        """Hold vLLM while it gets weights. It samples nothing with them before they have their version."""
        with engine.gate.held():
            yield
            engine.update(str(self.version()))

    @contextlib.contextmanager
    def _gateway_paused(self) -> Iterator[None]:
        """Pause sampling while a server gets weights, and tell the gateway their version, which the server lacks."""
        self.loop.gateway.pause()
        try:
            yield
        finally:
            self.loop.gateway.resume(str(self.version()))

    def _save(self) -> None:
        save_once(
            self.folder.checkpoint(self.version()),
            lambda: self.trainer._save_checkpoint(self.trainer.model, trial=None),
            self.state.wait_for_everyone,
        )


class _LoopCallback(transformers.TrainerCallback):  # type: ignore[misc]
    """Reports each step, and evaluates in between.

    Ctrl-C waits while weights are updated and the step is counted. In an evaluation it ends the run after the step's
    figures are recorded, which TRL does later: the checkpoint has the step, too.
    """

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop
        self._delayed = contextlib.ExitStack()
        self.interrupted = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._loop.evaluate_if_due(state.global_step)  # with the weights of the checkpoint

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step >= state.max_steps:  # Transformers looks at this after a step only
            raise NoStepsLeft(f"step {state.global_step} was the last one")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._delayed.enter_context(delay_interrupt())

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        try:
            self.close()
            self._loop.updated(state.global_step)
            self._loop.evaluate_if_due(state.global_step)
        except KeyboardInterrupt:
            self.interrupted = control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self._loop.end_step(state.global_step, logs)

    def close(self) -> None:
        """Delay Ctrl-C no longer."""
        self._delayed.close()


def save_once(checkpoint: Path, save: Callable[[], None], wait_for_everyone: Callable[[], object]) -> None:
    """Save a checkpoint that isn't there yet. Every process has a part in it, so all of them have to agree on that."""
    exists = checkpoint.exists()
    wait_for_everyone()  # or one process would find the checkpoint that another has just begun
    if not exists:
        save()


@contextlib.contextmanager
def name_settings_to_change(folder: Path) -> Iterator[None]:
    """Turn failures that a setting can avoid into errors with its name as the hint; the run writes to `folder`."""
    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        if out_of_memory(error):
            hint = "lower batch_size or concurrency, or set gradient_checkpointing"
            raise AgentCoreRLError(f"out of memory: {str(error).splitlines()[0]}", hint=hint) from error
        if is_full(folder):  # what writes checkpoints says it in no type
            raise _full_disk(error) from error
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise _full_disk(error) from error


def is_full(folder: Path) -> bool:
    """Whether the disk of a folder has no space left that a checkpoint could use."""
    try:
        return shutil.disk_usage(folder).free < _FULL_BYTES
    except OSError:
        return False


def _full_disk(error: Exception) -> AgentCoreRLError:
    hint = "free some space, or set output, keep or save_every, and resume"
    return AgentCoreRLError(f"the disk is full: {error}", hint=hint)


def check_logprobs(at_temperature: bool, needed_for: str = "async_steps") -> None:
    """Rollouts of earlier weights can only be corrected for by logprobs of the distribution they were sampled from, and
    only those can be compared with a teacher's."""
    if not at_temperature:
        raise ConfigError(
            f"{needed_for} needs the sampler's logprobs at its temperature, which this vLLM server doesn't return",
            hint=f"start it with --logprobs-mode processed_logprobs, or leave {needed_for} out",
        )


def open_distillation(settings: TrlSettings, vocabulary: int) -> Distillation | None:
    """The run's teacher, if it has one."""
    if settings.teacher is None:
        return None
    teacher = open_teacher(
        settings.teacher,
        temperature=settings.temperature,
        batch_size=settings.batch_size,
        device=settings.device,
        vocabulary=vocabulary,
    )
    return Distillation(teacher, settings.teacher_weight, settings.reward_weight)
