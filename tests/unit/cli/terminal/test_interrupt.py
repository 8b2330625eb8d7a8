"""Ctrl-C on the command line, as a process sees it: a verb of the test's own behind the real `main`."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from agentcore_rl_toolkit.cli import main, verbs
from support.process import clean_env

PROGRAM = """
import asyncio, ctypes, gc, os, signal, sys, time, weakref
from agentcore_rl_toolkit import cli
from agentcore_rl_toolkit.cli import verbs

def press():
    signal.raise_signal(signal.SIGINT)  # as if it came at this very moment

def run(args):
    {body}

class Verb:
    HELP = "a verb of the test's own"
    add_arguments = staticmethod(lambda parser: None)
    run = staticmethod(run)

verbs.VERBS = {"verb": Verb}
sys.argv = ["agentcore-rl", "verb"]
sys.exit(cli.main())
"""


def start(body: str, **more: Any) -> subprocess.Popen[str]:
    return run(PROGRAM.replace("{body}", textwrap.indent(textwrap.dedent(body), "    ").strip()), **more)


def run(source: str, **more: Any) -> subprocess.Popen[str]:
    more = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.default_int_handler)} | more
    command = [sys.executable, "-c", source]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_env(PYTHONUNBUFFERED="1"), **more
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    with process:
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return process.returncode, out, err


DROPPED = {
    "a finalizer": """
        class Slow:
            def __del__(self):
                press()
        Slow()
    """,
    "one finalizer after the other": """
        class Slow:
            def __del__(self):
                if self.left:
                    press() if self.left == 20 else time.sleep(0.02)
                    Slow.made(self.left - 1)
            @staticmethod
            def made(left):
                slow = Slow()
                slow.left = left
        Slow.made(20)
    """,
    "a weak reference's callback": """
        class Thing: pass
        thing = Thing()
        reference = weakref.ref(thing, lambda _: press())
        del thing
    """,
    "a callback from C": """
        ctypes.CFUNCTYPE(None)(press)()
    """,
    "a callback of the garbage collector": """
        def collected(phase, info):
            if phase == "start":
                gc.callbacks.remove(collected)
                press()
        gc.callbacks.append(collected)
        gc.collect()
    """,
    "a generator that is thrown away": """
        def generate():
            try:
                yield
            finally:
                press()
        generator = generate()
        next(generator)
        del generator
    """,
}


@pytest.mark.parametrize("where", DROPPED)
def test_an_interrupt_that_python_drops_comes_again(where: str) -> None:
    body = textwrap.dedent(DROPPED[where]) + textwrap.dedent("""
        try:
            time.sleep(3600)
        finally:
            print("cleaned up")
    """)
    assert ended(start(body)) == (130, "cleaned up\n", "")


PRESSED_AT_IMPORT = """
import signal, sys

class Pressing:
    @staticmethod
    def find_spec(name, *_):
        if name == {module!r}:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressing)
sys.argv = ["agentcore-rl", *{arguments!r}]
from agentcore_rl_toolkit.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("agentcore_rl_toolkit.cli.rollouts.eval", "eval"),
        ("transformers", "gateway serve --engine vllm=http://127.0.0.1:9 --tokenizer tiny --port 0"),
    ],
)
def test_an_interrupt_during_an_import_is_the_end(module: str, arguments: str) -> None:
    source = PRESSED_AT_IMPORT.format(module=module, arguments=arguments.split())
    code, out, err = ended(run(source))
    assert code == 130
    assert err == ""
    assert "http" not in out


def test_an_interrupt_while_the_process_exits_ends_it_without_a_traceback() -> None:
    body = """
        import atexit
        atexit.register(press)
        return 0
    """
    assert ended(start(body)) == (-signal.SIGINT, "", "")


def test_an_interrupt_that_is_swallowed_is_told_of_in_the_end() -> None:
    """A bare `except` of other people's code; what it did goes on, and the exit code says so."""
    body = """
        try:
            press()
        except:
            pass
        print("went on")
        return 0
    """
    assert ended(start(body)) == (130, "went on\n", "")


def test_a_second_interrupt_ends_it_at_once() -> None:
    process = start("""
        try:
            print("running")
            time.sleep(3600)
        finally:
            print("cleaning up")
            while True:
                try:
                    time.sleep(3600)
                except BaseException:
                    pass
    """)
    assert process.stdout is not None
    for expected in ("running\n", "cleaning up\n"):
        assert process.stdout.readline() == expected
        process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 130
    assert err == "ended at once; sessions may still be running\n"


def test_a_background_job_of_a_shell_goes_on_ignoring_it() -> None:
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    body = "press()\nprint(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\nreturn 0"
    assert ended(start(body, **ignoring)) == (0, "True\n", "")


SERVING = """
    from agentcore_rl_toolkit.cli.terminal.interrupt import stop_on_signals
    async def serve():
        stop = asyncio.Event()
        stop_on_signals(stop)
        print("serving")
        await stop.wait()
        print("ending")
        if {hangs}:
            await asyncio.sleep(3600)
    asyncio.run(serve())
    return 0
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_ends_in_order_when_it_is_asked_to(number: int) -> None:
    process = start(SERVING.replace("{hangs}", "False"))
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    process.send_signal(number)
    assert ended(process) == (0, "ending\n", "")


def test_a_server_that_does_not_end_is_ended_by_a_second_interrupt() -> None:
    process = start(SERVING.replace("{hangs}", "True"))
    assert process.stdout is not None
    for expected in ("serving\n", "ending\n"):
        assert process.stdout.readline() == expected
        process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 130


def test_a_server_in_the_background_goes_on_ignoring_it() -> None:
    ignoring = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    process = start(SERVING.replace("{hangs}", "False"), **ignoring)
    assert process.stdout is not None
    assert process.stdout.readline() == "serving\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "ending\n", "")


class Looking:
    """A verb that records the current handler of an interrupt."""

    HELP = "record the handler"
    seen: Any = None

    @staticmethod
    def add_arguments(parser: Any) -> None:
        pass

    @classmethod
    def run(cls, args: Any) -> int:
        cls.seen = signal.getsignal(signal.SIGINT)
        return 0


def test_handlers_are_there_for_every_verb_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verbs, "VERBS", {"look": Looking})
    hook, known = sys.unraisablehook, signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["look"]) == 0
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert Looking.seen is not signal.default_int_handler
        own = lambda *_: None  # noqa: E731 - a program that handles it itself
        signal.signal(signal.SIGINT, own)
        assert main(["look"]) == 0
        assert Looking.seen is own
        assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, known)
    assert sys.unraisablehook is hook


def test_other_exceptions_that_python_drops_are_told_as_ever() -> None:
    body = """
        class Broken:
            def __del__(self):
                raise ValueError("told")
        Broken()
        return 0
    """
    code, _, err = ended(start(body))
    assert code == 0
    assert "Exception ignored in" in err
    assert "ValueError: told" in err
