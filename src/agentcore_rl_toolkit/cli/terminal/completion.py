"""Print a script that completes verbs and flags in a shell.

For Bash: eval "$(agentcore-rl completion bash)", in ~/.bashrc. For Zsh: the same with zsh, in ~/.zshrc. For Fish:
agentcore-rl completion fish | source, in ~/.config/fish/config.fish. Paths are completed where a flag or a verb takes
one. The flags of `train` are those of TRL.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from string import Template

HELP = "print a script that completes verbs and flags"
EXAMPLES = ("agentcore-rl completion bash", "agentcore-rl completion zsh", "agentcore-rl completion fish")
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
_BASH = Template(
    """\
_agentcore_rl() {
  local word=$${COMP_WORDS[COMP_CWORD]} verbs="" offered="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "$$verbs $${COMP_WORDS[i]}" in
      $paths) verbs="$$verbs $${COMP_WORDS[i]}" ;;
    esac
  done
  case "$$verbs" in
$cases
  esac
  COMPREPLY=($$(compgen -W "$$offered" -- "$$word"))
  [[ $$word != -* ]] && COMPREPLY+=($$(compgen -f -- "$$word"))
}
complete -o filenames -F _agentcore_rl agentcore-rl
"""
)
_FISH = Template(
    """\
function __agentcore_rl
  set -l verbs ""
  for word in (commandline -opc)[2..]
    switch "$$verbs $$word"
      case $paths
        set verbs "$$verbs $$word"
    end
  end
  switch "$$verbs"
$cases
  end
end
complete -c agentcore-rl -a "(__agentcore_rl)"
"""
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(args: argparse.Namespace) -> int:
    from .. import build_parser

    print(completion_script(build_parser(), args.shell), end="")
    return 0


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    known = dict(_words(parser, ""))
    paths = [f'"{path}"' for path in known if path]
    if shell == "fish":
        cases = [f'    case "{path}"\n      printf "%s\\n" {" ".join(words)}' for path, words in known.items()]
        return _FISH.substitute(paths=" ".join(paths), cases="\n".join(cases))
    cases = [f'    "{path}") offered="{" ".join(words)}" ;;' for path, words in known.items()]
    return (_ZSH if shell == "zsh" else "") + _BASH.substitute(paths="|".join(paths), cases="\n".join(cases))


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
