"""A run's settings as others take them: rollouts, and TRL."""

from __future__ import annotations

from trl import GRPOConfig

from ...errors import ConfigError
from ...rollout import Judge, RolloutOptions, failure_table
from ..settings import TrainSettings


def rollout_options(settings: TrainSettings, model: str) -> RolloutOptions:
    """How the rollouts of a run are run."""
    judge = Judge(
        table=failure_table(settings.failures),
        failed_reward=settings.failed_reward,
        min_trained_ratio=settings.min_trained_ratio,
        max_rollout_tokens=settings.max_rollout_tokens,
        dynamic_sampling=settings.dynamic_sampling,
    )
    return RolloutOptions(
        n=settings.n,
        max_concurrent_sessions=settings.concurrency,
        timeout=settings.timeout,
        oversample=settings.oversample,
        max_failures=settings.max_failures,
        max_batch_tokens=settings.max_batch_tokens,
        enforced=settings.sampling,
        context_limit=settings.context_limit,
        model=model,
        judge=judge,
        keep_dropped=True,
    )


def trl_config(settings: TrainSettings, processes: int = 1) -> GRPOConfig:
    """TRL's own configuration for this run."""
    rollouts = settings.rows_per_step * settings.n
    if rollouts % processes or (rollouts // processes) % settings.n:
        raise ConfigError(f"rows_per_step={settings.rows_per_step} can't be shared by {processes} processes")
    local = rollouts // processes
    batch = next(size for size in range(min(settings.batch_size, local), 0, -1) if local % size == 0)
    return GRPOConfig(
        output_dir=str(settings.folder / "checkpoints"),
        max_steps=settings.steps,
        num_generations=settings.n,
        per_device_train_batch_size=batch,
        steps_per_generation=local // batch,
        gradient_accumulation_steps=local // batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        loss_type=settings.loss,
        beta=0.0,
        temperature=settings.temperature,
        gradient_checkpointing=settings.gradient_checkpointing,
        bf16=settings.dtype == "bfloat16",
        fp16=False,
        use_cpu=settings.device == "cpu",
        seed=settings.seed,
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_every,
        save_total_limit=settings.keep,
        report_to=[] if settings.report_to == "none" else settings.report_to.split(","),
        remove_unused_columns=False,
        disable_tqdm=True,
        log_completions=False,
    )
