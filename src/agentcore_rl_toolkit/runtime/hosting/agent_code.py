"""Finds an agent's code and loads its app. `agent_files.py` decides which files belong to the agent."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from ...errors import ConfigError, suggest_path


def find_agent(target: str | os.PathLike[str], name: str | None = None) -> tuple[str, str, str]:
    """An agent's name, folder and entry (`file.py` in the folder, or `module:app`); a folder means its `rl_app.py`.

    >>> find_agent("my.agents:app")[0]
    'agents'
    """
    text = os.fspath(target)
    if text.endswith(".py") or os.sep in text or not _is_module(text):
        path = Path(text).resolve()
        if path.is_dir():
            path = path / "rl_app.py"
        if not path.is_file():
            bare = path.name == "rl_app.py" and path.parent.is_dir()
            hint = f"agentcore-rl init {os.path.relpath(path.parent)} adds one" if bare else suggest_path(text)
            raise ConfigError(f"no agent found at {path}", hint=hint or "name a Python file, or module:app")
        default = path.parent.name if path.stem in ("rl_app", "app", "main", "basic_app") else path.stem
        folder, entry = str(path.parent), path.name
    else:
        folder, entry, default = os.getcwd(), text, text.partition(":")[0].split(".")[-1]
    fit = "".join(c if c.isalnum() or c == "_" else "_" for c in (name or default))[:48] or "agent"
    return fit, folder, entry


def _is_module(text: str) -> bool:
    """Whether a name without a slash is a module's (`my_agent`, `my.agents:app`), rather than a folder's or a typo."""
    if ":" in text or "." in text:
        return bool(text.strip("."))
    if os.path.isdir(text):
        has = {name for name in ("rl_app.py", "__init__.py") if os.path.isfile(os.path.join(text, name))}
        return has == {"__init__.py"}
    return os.path.isfile(f"{text}.py") or bool(text and importlib.util.find_spec(text))


def load_app(folder: str, entry: str) -> Any:
    """Import the agent, with its folder as the working directory, and return its app."""
    os.chdir(folder)
    sys.path.insert(0, folder)
    module_name, _, attribute = entry.partition(":")
    if module_name.endswith(".py"):
        name = os.path.basename(module_name).removesuffix(".py")
        spec = importlib.util.spec_from_file_location(name, os.path.join(folder, module_name))
        if spec is None or spec.loader is None:
            raise ImportError(f"{module_name} can't be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    return _find_app(module, attribute)


def import_traceback(error: BaseException, folder: str) -> str:
    """The traceback of a failed import, without the toolkit's frames above the agent's own."""
    own = error.__traceback__
    while own is not None and not own.tb_frame.f_code.co_filename.startswith(folder.rstrip("/") + "/"):
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own))


def _find_app(module: Any, attribute: str) -> Any:
    from bedrock_agentcore.runtime import BedrockAgentCoreApp

    if attribute:
        if not hasattr(module, attribute):
            raise ImportError(f"{module.__name__} has no {attribute!r}")
        return getattr(module, attribute)
    apps = {name: value for name, value in vars(module).items() if isinstance(value, BedrockAgentCoreApp)}
    if "app" in apps:
        return apps["app"]
    if len(apps) == 1:
        return next(iter(apps.values()))
    raise ImportError(f"{module.__name__} has no app: write `app = AgentCoreRLApp()` at the top level")
