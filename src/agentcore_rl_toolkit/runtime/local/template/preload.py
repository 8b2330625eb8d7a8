"""Which installed packages a template imports before it is forked: those that the agent imports in every session.

Importing an SDK takes a session a second of CPU time, and its first model call half a second more; forking a process
that has done both costs nothing. But the agent's own code must not run in a template, which has the rights to build
sandboxes. So a throwaway session imports the agent, makes a model call that reaches nothing, and reports what was
imported (`observe_imports`); the template then imports what of that is installed on this machine (`preload`). Packages
are as trusted as the interpreter; the agent's folder, editable installs and `PYTHONPATH` are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import agentcore_rl_toolkit

from ...hosting.request_checks import MODEL_VARIABLES, model_variables
from ..sandbox.import_paths import trusted_folders
from .session_server import warm_up_server

_MOST_NAMES = 20_000
_IMPORTLIB = "<frozen importlib"
_FINDERS = ("BuiltinImporter", "FrozenImporter", "PathFinder", "DistutilsMetaFinder")
"""Python's import finders, and setuptools' one; others, such as those of editable installs, know further folders."""
_PROGRAMS = frozenset({"antigravity", "ensurepip", "idlelib", "pip", "test", "this", "turtledemo"})
"""Packages with modules that have effects when imported."""
_READERS = ("os", Mapping.__module__, f"{agentcore_rl_toolkit.__name__}.config")
_PROBES = [("GET", "/ping", b""), ("POST", "/invocations", b"{")]
"""A ping, and a request that isn't JSON: the agent's own code is not called."""
_NOWHERE = "http://127.0.0.1:9"
"""The discard port: nothing listens there, and the throwaway session can't reach the network anyway."""


class _ImportObserver:
    """An audit hook that notes the modules which the agent's imports load and which can be imported without it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder.rstrip("/") + "/"
        self._seen, self._threads = set(sys.modules), threading.active_count()
        self._stable: set[str] | None = None
        """Top-level packages loaded when the agent first changed the environment; None while it has not."""
        self.names: list[str] = []
        """The noted modules in order, without those that started threads or may depend on a changed environment."""

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self._stable is not None:
            return
        if event == "import" and self._is_agents(through_imports=True):
            self.note_new()
        elif event in ("os.putenv", "os.unsetenv") and self._is_agents():
            self.note_new()
            self._stable = _top_levels(sys.modules)

    def finish_agent(self) -> None:
        """The agent is imported: after a change of the environment, skip what it loaded since."""
        if self._stable is None:
            self.note_new()
        self._seen.update(sys.modules)

    def finish_warm_up(self) -> None:
        """The warm-up is over: its event loops' threads have ended with them."""
        self._threads = threading.active_count()
        self.note_new()

    def note_new(self) -> None:
        """Note what was imported since the last time, unless a thread was started as well."""
        new = [name for name in sys.modules if name not in self._seen]
        self._seen.update(new)
        count = threading.active_count()
        if count <= self._threads:
            self.names += [name for name in new if self._stable is None or name.partition(".")[0] in self._stable]
        self._threads = count

    def _is_agents(self, *, through_imports: bool = False) -> bool:
        """Whether the agent's code does this, not a package that it imports."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            name = frame.f_code.co_filename
            if name.startswith(self._folder):
                return True
            if name.startswith(_IMPORTLIB) != through_imports:
                return False
            frame = frame.f_back
        return False


class _WatchedEnvironment(os._Environ):  # type: ignore[type-arg]
    """The environment, noting whether anything but the app itself reads where the model is."""

    reads_model = False

    def __getitem__(self, name: str) -> str:
        if name in MODEL_VARIABLES and not _is_apps_own_read():
            type(self).reads_model = True
        return str(super().__getitem__(name))


def _is_apps_own_read() -> bool:
    """Whether an app is being made: it reads its configuration, and needs the model only in production."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in _READERS:
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == f"{agentcore_rl_toolkit.__name__}.agent.app"


def observe_imports(folder: str, python_path: Iterable[str], load: Callable[[], Any]) -> dict[str, Any]:
    """In a throwaway session: import the agent, warm up its server and SDKs, and report what that imported.

    Modules in the agent's folder and in `python_path` are its own, whatever is installed under the same name, unless
    they are in an environment below. The report also says whether the agent read where its model is; it found values
    that lead nowhere.
    """
    for name, value in model_variables({"_rollout": {"base_url": f"{_NOWHERE}/v1"}}).items():
        os.environ.setdefault(name, value)
    observer = _ImportObserver(folder)
    sys.addaudithook(observer)
    os.environ.__class__ = _WatchedEnvironment
    app = load()
    reads_model = _WatchedEnvironment.reads_model
    observer.finish_agent()
    for warm_up in (warm_up_server(app, _PROBES), warm_up_sdks()):
        with contextlib.suppress(Exception):
            asyncio.run(asyncio.wait_for(warm_up, 10))
    observer.finish_warm_up()
    folders = tuple(place.rstrip("/") + "/" for place in (folder, *python_path))
    installed = tuple(place.rstrip("/") + "/" for place in trusted_folders())
    loaded = list(sys.modules.items())
    own = _top_levels(name for name, it in loaded if _is_below(it, folders) and not _is_below(it, installed))
    return {"imported": observer.names, "own": sorted(own), "reads_model": reads_model}


async def warm_up_sdks() -> None:
    """Call a model with each SDK that is loaded: SDKs import most of themselves on their first call."""
    for name, call in _SDK_CALLS.items():
        if name in sys.modules:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(call(), 5)


async def _call_openai() -> None:
    import openai

    client = openai.AsyncOpenAI(api_key="EMPTY", base_url=_NOWHERE, max_retries=0, timeout=1)
    with contextlib.suppress(openai.APIError):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
    with contextlib.suppress(openai.APIError):
        await client.responses.create(model="m", input="hi")
    await client.close()


async def _call_anthropic() -> None:
    import anthropic

    client = anthropic.AsyncAnthropic(api_key="EMPTY", base_url=_NOWHERE, max_retries=0, timeout=1)
    with contextlib.suppress(anthropic.APIError):
        await client.messages.create(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}])
    await client.close()


async def _call_bedrock() -> None:
    import boto3
    from botocore.config import Config

    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    config = Config(retries={"max_attempts": 0}, connect_timeout=1)
    client = boto3.client("bedrock-runtime", endpoint_url=_NOWHERE, config=config, **keys)
    client.converse(modelId="m", messages=[{"role": "user", "content": [{"text": "hi"}]}])


async def _call_google() -> None:
    from google import genai

    client = genai.Client(api_key="EMPTY", vertexai=False, http_options={"base_url": _NOWHERE, "timeout": 1000})
    with contextlib.suppress(Exception):
        client.models.generate_content(model="m", contents="hi")  # the async client would retry
    client.close()


_SDK_CALLS: dict[str, Callable[[], Awaitable[None]]] = {
    "openai": _call_openai,
    "anthropic": _call_anthropic,
    "google.genai": _call_google,
    "strands.models.bedrock": _call_bedrock,
}


def preload(report: dict[str, Any], trusted: Iterable[str]) -> list[str]:
    """In the template: import the installed packages that a report names; returns what forbids forking now."""
    ours = os.path.dirname(agentcore_rl_toolkit.__file__)  # trusted, wherever it is installed
    folders = tuple(os.path.realpath(path).rstrip("/") + "/" for path in (*trusted, ours))
    before = unsafe_to_fork()
    with _importing_only_from(folders):
        # An agent's module with a package's name takes that package's place in every session: preload nothing then.
        if not any(_is_installed(name, folders) for name in _strings(report.get("own"))):
            for name in _strings(report.get("imported")):
                if _is_installed(name, folders):
                    with contextlib.suppress(Exception, SystemExit):
                        importlib.import_module(name)
    return sorted(unsafe_to_fork() - before)


@contextlib.contextmanager
def _importing_only_from(folders: tuple[str, ...]) -> Iterator[None]:
    """Restrict imports: packages try optional ones, and an editable project may have the same name."""
    path, finders = sys.path[:], sys.meta_path[:]
    sys.path[:] = [place for place in path if (os.path.realpath(place) + "/").startswith(folders)]
    sys.meta_path[:] = [f for f in finders if getattr(f, "__name__", type(f).__name__) in _FINDERS]
    try:
        yield
    finally:
        sys.path[:] = _with_additions(path, sys.path)
        sys.meta_path[:] = _with_additions(finders, sys.meta_path)


def _with_additions(before: list[Any], now: list[Any]) -> list[Any]:
    """The items from before, with those that packages have added in front of them and behind."""
    first = next((at for at, item in enumerate(now) if item in before), len(now))
    return [*now[:first], *before, *(item for item in now[first:] if item not in before)]


def unsafe_to_fork() -> set[str]:
    """What a fork would duplicate in a broken state: threads, and sockets or other connected descriptors."""
    found = set()
    if not os.path.isdir("/proc/self/task"):
        return {f"thread {t.name}" for t in threading.enumerate() if t is not threading.main_thread()}
    for task in os.listdir("/proc/self/task"):
        if task != str(os.getpid()):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as file:
                found.add(f"thread {task} ({file.read().strip()})")
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{descriptor}")
            if target.startswith(("socket:", "anon_inode:")):
                found.add(f"descriptor {descriptor} ({target})")
    return found


def _strings(value: Any) -> list[str]:
    """The strings in part of a report, which comes from the agent's process and may hold anything."""
    return [item for item in value if isinstance(item, str)][:_MOST_NAMES] if isinstance(value, list) else []


def _is_installed(name: str, folders: tuple[str, ...]) -> bool:
    """Whether a module belongs to the interpreter or to `site-packages`; doesn't import it."""
    top = name.partition(".")[0]
    if top in _PROGRAMS or any(part.startswith("__") for part in name.split(".")):
        return False
    if top in sys.builtin_module_names or top in sys.stdlib_module_names:
        return True
    with contextlib.suppress(Exception):
        spec = importlib.util.find_spec(top)
        if spec is not None:
            places = list(spec.submodule_search_locations or []) or [spec.origin or ""]
            return all((os.path.realpath(place) + "/").startswith(folders) for place in places)
    return False


def _top_levels(names: Iterable[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def _is_below(module: Any, folders: tuple[str, ...]) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and path.startswith(folders)
