"""Print a script that completes verbs and flags in a shell.

For Bash: eval "$(agentcore-rl completion bash)", in ~/.bashrc. For Zsh: the same with zsh, in ~/.zshrc. Paths are
completed where a flag or a verb takes one. The flags of `train` are those of TRL.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from string import Template

HELP = "print a script that completes verbs and flags"
EXAMPLES = ("agentcore-rl completion bash", "agentcore-rl completion zsh")
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
_SCRIPT = Template(
    """\
_agentcore_rl() {
  local word=$${COMP_WORDS[COMP_CWORD]} path="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$$path $${COMP_WORDS[i]}" in
      $paths) path="$$path $${COMP_WORDS[i]}" ;;
    esac
  done
  case "$$path" in
$cases
  esac
  COMPREPLY=($$(compgen -W "$$words" -- "$$word"))
  [[ $$word != -* ]] && COMPREPLY+=($$(compgen -f -- "$$word"))
}
complete -o filenames -F _agentcore_rl agentcore-rl
"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell")


def run(args: argparse.Namespace) -> int:
    from .. import build_parser

    print((_ZSH if args.shell == "zsh" else "") + completion_script(build_parser()), end="")
    return 0


def completion_script(parser: argparse.ArgumentParser) -> str:
    known = dict(_words(parser, ""))
    paths = "|".join(f'"{path}"' for path in known if path)
    cases = "\n".join(f'    "{path}") words="{" ".join(words)}" ;;' for path, words in known.items())
    return _SCRIPT.substitute(paths=paths, cases=cases)


def _words(parser: argparse.ArgumentParser, path: str) -> Iterator[tuple[str, list[str]]]:
    """The verbs and flags that may follow each path of verbs."""
    if path == " train":
        from ...backends.base import find
        from ..rollouts.train import DEFAULT_BACKEND, parser_for

        parser = parser_for(find(DEFAULT_BACKEND))
    verbs: dict[str, argparse.ArgumentParser] = {}
    flags: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            verbs |= action.choices
        else:
            flags += [flag for flag in action.option_strings if flag.startswith("--")]
    yield path, [*verbs, *flags]
    for name, verb in verbs.items():
        yield from _words(verb, f"{path} {name}")
