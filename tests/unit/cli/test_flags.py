"""Rules of the whole command line: every verb's parser is walked."""

from __future__ import annotations

import argparse
import shlex
import typing
from collections.abc import Iterator
from inspect import isfunction

import pytest

from agentcore_rl_toolkit.backends.base import find, names
from agentcore_rl_toolkit.cli import build_parser
from agentcore_rl_toolkit.cli.rollouts.train import parser_for

ONE_NAME = {
    "--exp-id": ("--exp", "--experiment", "--compare-exp"),
    "--n": ("--samples", "--num-samples", "--num-generations"),
    "--sqs-url": ("--queue", "--sqs"),
    "--gateway-url": ("--gateway-address",),
    "--context-limit": ("--context", "--context-length"),
    "--idle-timeout": ("--idle-seconds",),
    "--max-lifetime": ("--lifetime-seconds", "--lifetime"),
    "--role-arn": ("--role",),
    "--concurrency": ("--max-concurrent-sessions",),
    "--builder": ("--build-engine",),
}
"""What a thing is called, and what it must not be called anywhere."""
OTHER_KINDS = {"--engine"}
"""Flags whose values differ between verbs: the gateway's engines have addresses, verl has names of its own."""


def verbs(parser: argparse.ArgumentParser | None = None) -> Iterator[argparse.ArgumentParser]:
    """The parser of every verb, and of `train` with every backend."""
    for action in (parser or build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                if name != "train":
                    yield from verbs(child)
    if parser is not None:
        yield parser
    else:
        yield from (parser_for(find(name)) for name in names())


PARSERS = list(verbs())
IDS = [parser.prog.replace(" ", "-") for parser in PARSERS]


def flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {flag: action for action in parser._actions for flag in action.option_strings if flag.startswith("--")}


def test_every_verb_is_walked() -> None:
    assert {"agentcore-rl eval", "agentcore-rl gateway serve", "agentcore-rl train --backend verl"} <= {
        parser.prog for parser in PARSERS
    }


@pytest.mark.parametrize("parser", PARSERS, ids=IDS)
def test_no_flag_can_be_abbreviated(parser: argparse.ArgumentParser) -> None:
    assert parser.allow_abbrev is False


@pytest.mark.parametrize("parser", PARSERS, ids=IDS)
def test_help_ends_with_examples_that_the_parsers_accept(parser: argparse.ArgumentParser) -> None:
    _, found, examples = parser.format_help().partition("\nexamples:\n")
    assert found, parser.prog
    for line in examples.splitlines():
        command = line.strip().split("   ")[0]
        words = shlex.split(command.split(" | ")[0].split(" > ")[0])
        if words[1] == "VERB" or "--help" in words:
            continue
        _, rest = build_parser().parse_known_args(words[1:])
        if words[1] == "train":
            backend = words[words.index("--backend") + 1] if "--backend" in words else "trl"
            _, rest = parser_for(find(backend)).parse_known_args(rest)
        assert rest == [], line


def test_a_thing_has_one_name() -> None:
    every = {flag for parser in PARSERS for flag in flags(parser)}
    for name, others in ONE_NAME.items():
        assert name in every
        assert not every & set(others), name


def test_a_flag_takes_the_same_everywhere() -> None:
    seen: dict[str, dict[tuple[str | None, str], list[str]]] = {}
    for parser in PARSERS:
        for flag, action in flags(parser).items():
            if flag in OTHER_KINDS or action.nargs == 0:
                continue
            kind = str(action.metavar or action.choices)
            takes = typing.get_type_hints(action.type).get("return") if isfunction(action.type) else action.type
            seen.setdefault(flag, {}).setdefault((kind, str(takes or str)), []).append(parser.prog)
    assert {flag: kinds for flag, kinds in seen.items() if len(kinds) > 1} == {}


@pytest.mark.parametrize("parser", PARSERS, ids=IDS)
def test_every_flag_says_what_it_does(parser: argparse.ArgumentParser) -> None:
    for flag, action in flags(parser).items():
        assert action.help, f"{parser.prog} {flag}"
        assert action.help.lower() != flag.lstrip("-").replace("-", " ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "agentcore-rl --help lists the verbs"),
        (["gateway"], "agentcore-rl gateway --help lists the verbs"),
        (["evla", "x"], "did you mean eval?"),
        (["gateway", "sreve"], "did you mean serve?"),
        (["eval", "x", "--modle", "tiny"], "did you mean --model?"),
        (["eval", "x", "--exp=1"], "did you mean --exp-id?"),
        (["eval", "x", "--resum"], "unrecognized arguments: --resum\nhint: did you mean --resume?"),
        (["train", "x", "--learning-rat", "1"], "did you mean --learning-rate?"),
        (
            ["gateway", "serve", "--enigne", "vllm=x"],
            "are required: --engine, --tokenizer\nhint: did you mean --engine?",
        ),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from agentcore_rl_toolkit.cli import main

    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("port", ["65536", "80000", "-1", "http"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    gateway = ["gateway", "serve", "--engine", "vllm=http://x", "--tokenizer", "tiny"]
    for words in (["serve", "tiny"], ["runtime", "serve", "a.py"], ["ui"], gateway):
        with pytest.raises(SystemExit):
            build_parser().parse_args([*words, f"--port={port}"])
        assert f"argument --port: invalid port value: '{port}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--retries", "-1", "must be at least 0, not -1"),
        ("--limit", "0", "must be at least 1, not 0"),
        ("--limit", "-1", "must be at least 1, not -1"),
        ("--n", "x", "invalid count value: 'x'"),
        ("-k", "0", "must be at least 1, not 0"),
        ("--concurrency", "0", "must be at least 1, not 0"),
        ("--timeout", "0", "must be a number above 0, not 0"),
        ("--timeout", "nan", "must be a number above 0, not nan"),
        ("--temperature", "-1", "must be a number from 0 on, not -1"),
        ("--context-limit", "0", "must be at least 1, not 0"),
        ("--memory-mb", "1.5", "invalid count value: '1.5'"),
    ],
)
def test_a_number_that_can_not_work_is_refused_at_once(
    flag: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(
            ["eval", "my_agent", f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}"]
        )
    assert f"{flag}" in (said := capsys.readouterr().err)
    assert says in said


def test_a_temperature_may_be_0() -> None:
    assert build_parser().parse_args(["eval", "my_agent", "--temperature", "0"]).temperature == 0
