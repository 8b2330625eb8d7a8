"""`agentcore-rl train` in processes that can be killed, forked from one that has imported TRL: that takes seconds."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["agentcore_rl_toolkit.backends.trl.training"])


def command_line(settings: Any) -> list[str]:
    """The words of a command line that has these settings."""
    changed = {spec.name: getattr(settings, spec.name) for spec in dataclasses.fields(settings) if spec.name != "agent"}
    defaults = {spec.name: spec.default for spec in dataclasses.fields(settings)}
    words = ["train", settings.agent]
    for name, value in changed.items():
        if value not in ({}, defaults[name]):
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return words


def start_training(words: list[str], log: Path, before: str = "", **env: str) -> BaseProcess:
    """Run a command line in another process, after the code of `before`; errors go to `log`, data to `log`.out."""
    process = _FORKS.Process(target=_run, args=(words, str(log), before, env))
    process.start()
    return process


def _run(words: list[str], log: str, before: str, env: dict[str, str]) -> None:
    for stream, path in ((sys.stderr, log), (sys.stdout, f"{log}.out")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream.fileno())
    os.environ.update(env)
    from agentcore_rl_toolkit.cli import main

    exec(before, {"sys": sys})
    sys.exit(main(words))
