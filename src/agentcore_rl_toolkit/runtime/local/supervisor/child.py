"""A supervisor as a separate process: how a program starts it, ends it, and cleans up if it was killed; its `main`.

The two ends of a `Channel` hold both to each other: when the program ends, however it does, the supervisor ends all
sessions and itself, and when the supervisor is killed, the program removes what it had made. The supervisor starts
as `python -I`, because the program may run in an agent's folder, and finds installed packages where the program does.

    → ready {port, protections, missing, …}     ← request, with a socket (`link.py`)
    → failed {kind, message}
    → log {name, level, message}
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import site
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ....common.private_loop import run_alone
from ....errors import ConfigError, RuntimeFault
from ..sandbox.cgroup import remove_groups
from ..sandbox.import_paths import WORKING_DIRECTORY, isolated_command
from ..sessions.places import Places
from ..template.channel import Channel
from .link import SupervisorLink
from .runtime_settings import RuntimeSettings

logger = logging.getLogger(__name__)

_END_SECONDS = 30.0
_CLEAN_SECONDS = 10.0
_LONGEST_MESSAGE = 8000
_PACKAGE = __name__.partition(".")[0]


class SupervisorChild:
    """A supervisor's process, as the program sees it."""

    def __init__(self, settings: RuntimeSettings, on_killed: Callable[[], object], places: Places | None) -> None:
        """`on_killed` is called if the process ends without being told to. `places` are those of a front's worker."""
        self._settings, self._on_killed, self._places = settings, on_killed, places
        self._channel, self._other_end = Channel.pair()
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._process: subprocess.Popen[bytes] | None = None
        self._traces: dict[str, Any] = {"state": None, "groups": []}
        self.link = SupervisorLink(self._channel)
        self.pid = 0
        self.is_closed = False

    async def start(self) -> dict[str, Any]:
        """Start the process; returns what its supervisor says of itself, or raises what kept it from starting."""
        self._launch()
        asyncio.get_running_loop().add_reader(self._channel.fileno(), self._receive)
        try:
            ready = await asyncio.shield(self._ready)
        except BaseException:
            await self.close()
            raise
        self._traces = ready["traces"]
        return ready

    def _launch(self) -> None:
        self._process = subprocess.Popen(
            isolated_command(__name__),
            stdin=subprocess.PIPE,
            pass_fds=(self._other_end.fileno(), *self._shared),
            start_new_session=True,  # an interrupt is the program's, which then closes the runtime
            cwd=WORKING_DIRECTORY,
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:  # `_receive` notices that it ended
            stdin.write(json.dumps(self._spec()).encode())
        self._other_end.close()

    @property
    def _shared(self) -> list[int]:
        return [] if self._places is None else [self._places.counter, self._places.notes]

    def _spec(self) -> dict[str, Any]:
        return {
            "places": None if self._places is None else [*self._shared, self._places.slot],
            "settings": self._settings.to_json(),
            "channel": self._other_end.fileno(),
            "path": [os.path.abspath(path) for path in sys.path if path],
            "user_site": site.getusersitepackages() if site.ENABLE_USER_SITE else None,
            "folder": os.getcwd(),
            "level": logging.getLogger(_PACKAGE).getEffectiveLevel(),
        }

    def _receive(self) -> None:
        message, _ = self._channel.receive()
        if message is None:
            self._ended()
        elif message["op"] == "log":
            logging.getLogger(message["name"]).log(message["level"], "%s", message["message"])
        elif self._ready.done():
            return
        elif message["op"] == "ready":
            self._ready.set_result(message)
        else:
            kind = ConfigError if message["kind"] == ConfigError.__name__ else RuntimeFault
            self._ready.set_exception(kind(message["message"]))

    def _ended(self) -> None:
        """The process has closed its end, which only its own end does."""
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        if not self._ready.done():
            self._ready.set_exception(RuntimeFault("the runtime's supervisor ended before it was ready"))
        elif not self.is_closed:
            self.is_closed = True
            self._on_killed()

    async def close(self) -> None:
        """End the process with all its sessions; returns when nothing is left of them."""
        self.is_closed = True
        if self._ready.done():
            self._ready.cancelled() or self._ready.exception()
        asyncio.get_running_loop().remove_reader(self._channel.fileno())
        self._channel.close()
        await asyncio.to_thread(self._wait_and_clean_up)

    def _wait_and_clean_up(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode != 0:
            _remove_traces(self._traces)


def _remove_traces(traces: dict[str, Any]) -> None:
    """Remove what a killed supervisor has left: its templates and their sessions end by themselves."""
    deadline = time.monotonic() + _CLEAN_SECONDS
    while not remove_groups(traces["groups"]) and time.monotonic() < deadline:
        time.sleep(0.02)
    if traces["state"] is not None:
        shutil.rmtree(traces["state"], ignore_errors=True)


# --- in the process ------------------------------------------------------------------------------------------------


def main() -> None:
    """Supervise sessions until the program closes its end of the channel."""
    spec = json.loads(sys.stdin.buffer.read())
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    for descriptor in (spec["channel"], *(spec["places"] or ())[:2]):
        os.set_inheritable(descriptor, False)
    if spec["user_site"]:
        site.addsitedir(spec["user_site"])
        site.ENABLE_USER_SITE = True
    sys.path += [path for path in spec["path"] if path not in sys.path]
    with contextlib.suppress(OSError):
        os.chdir(spec["folder"])
    channel = Channel(socket.socket(fileno=spec["channel"]))
    logging.basicConfig(level=spec["level"], handlers=[_ChannelHandler(channel)])
    places = Places(*spec["places"]) if spec["places"] else None
    run_alone(_supervise(RuntimeSettings.from_json(spec["settings"]), places, channel))


async def _supervise(settings: RuntimeSettings, places: Places | None, channel: Channel) -> None:
    from .front import Front
    from .link_server import LinkServer
    from .supervisor import Supervisor

    supervisor = Front(settings) if settings.workers > 1 else Supervisor(settings, places)
    try:
        await supervisor.start()
    except Exception as error:
        message = str(error) or type(error).__name__
        channel.send({"op": "failed", "kind": type(error).__name__, "message": message[:_LONGEST_MESSAGE]})
        return
    server = LinkServer(supervisor, channel)
    server.start()
    with contextlib.suppress(OSError):  # the program has ended already
        channel.send({"op": "ready"} | supervisor.introduce())
    await server.closed.wait()
    await supervisor.aclose()


class _ChannelHandler(logging.Handler):
    """Passes records on to the program's loggers; drops them while the program doesn't read."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter())
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        message = self.format(record)[:_LONGEST_MESSAGE]
        with contextlib.suppress(OSError):
            document = {"op": "log", "name": record.name, "level": record.levelno, "message": message}
            self._channel.send(document, wait=False)
