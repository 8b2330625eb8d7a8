"""`agentcore-rl completion`, in real shells."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from agentcore_rl_toolkit.cli import main

BASH = """
COMP_WORDS=({words}) COMP_CWORD={place}
_agentcore_rl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = """
complete -C "{line}"
"""


@pytest.mark.parametrize("shell", ["bash", "fish"])
@pytest.mark.parametrize(
    ("words", "some", "none"),
    [
        (["agentcore-rl", "ro"], {"rollout"}, {"runtime"}),
        (["agentcore-rl", "runtime", ""], {"serve", "ps"}, {"train"}),
        (["agentcore-rl", "eval", "my_agent", "--mo"], {"--model", "--model-id"}, {"--data"}),
        (["agentcore-rl", "train", "my_agent", "--learn"], {"--learning-rate"}, {"--model"}),
        (["agentcore-rl", "gateway", "serve", "--eng"], {"--engine"}, {"--model"}),
    ],
)
def test_a_shell_completes_verbs_and_flags(
    shell: str, words: list[str], some: set[str], none: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    assert main(["completion", shell]) == 0
    quoted = " ".join(f"'{word}'" for word in words)
    ask = {"bash": BASH, "fish": FISH}[shell].format(words=quoted, place=len(words) - 1, line=" ".join(words))
    script = capsys.readouterr().out + ask
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    found = set(done.stdout.split())
    assert some <= found
    assert not none & found
    assert done.stderr == ""


ZSH = """
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "source '$1'; print READY''MARK"
zpty -r shell printed '*READYMARK*'
zpty -w -n shell $'agentcore-rl train my_agent --learn\\t'
zpty -r shell printed '*--learning-rate*'
print -r -- $printed
"""
"""A terminal in which someone types; each read waits for what it expects."""


def test_zsh_completes_what_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("needs zsh")
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    command = ["zsh", "-f", "-c", ZSH, "zsh", str(tmp_path / "script")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "--learning-rate" in done.stdout, done.stderr
