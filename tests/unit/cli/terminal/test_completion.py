"""`agentcore-rl completion`, in a real Bash."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from agentcore_rl_toolkit.cli import main

ASK = """
COMP_WORDS=({words}) COMP_CWORD={place}
_agentcore_rl
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


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
def test_bash_completes_verbs_and_flags(
    words: list[str], some: set[str], none: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if shutil.which("bash") is None:
        pytest.skip("needs bash")
    assert main(["completion", "bash"]) == 0
    quoted = " ".join(f"'{word}'" for word in words)
    script = capsys.readouterr().out + ASK.format(words=quoted, place=len(words) - 1)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60)
    found = set(done.stdout.split())
    assert some <= found
    assert not none & found
    assert done.stderr == ""


def test_zsh_gets_bashs_completion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("autoload -U +X compinit bashcompinit")
    assert "complete -o filenames -F _agentcore_rl agentcore-rl" in printed
