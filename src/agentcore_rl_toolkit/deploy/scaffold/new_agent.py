"""A new agent's folder: a production app, its RL version, a reward, data, and a Dockerfile.

Both apps of a framework come from one diff, so the README can show exactly how they differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

from ...errors import ConfigError

TEMPLATES = Path(__file__).parents[1] / "templates"


@dataclass(frozen=True)
class Framework:
    """An agent framework."""

    requirements: tuple[str, ...]
    """The packages it needs besides the toolkit."""
    wire: str
    """The API that its model has to serve."""
    extra: str = ""
    """The toolkit's extra for it."""


_CHAT = "OpenAI's Chat Completions"
FRAMEWORKS = {
    "strands": Framework(("strands-agents[openai]>=1.40",), _CHAT, "strands"),
    "langgraph": Framework(("langgraph>=1.0", "langchain-openai>=1.0"), _CHAT),
    "openai-agents": Framework(("openai-agents>=0.20",), "OpenAI's Responses, such as the gateway's"),
    "pydantic-ai": Framework(("pydantic-ai-slim[openai]>=2.0",), _CHAT),
    "openai": Framework(("openai>=2.0",), _CHAT),
    "anthropic": Framework(("anthropic>=2.0",), "Anthropic's Messages, such as the gateway's"),
}


def write_agent(folder: Path, framework: str) -> list[Path]:
    """Write a new agent and return its files. Refuses a folder that has files."""
    if framework not in FRAMEWORKS:
        raise ConfigError(f"unknown framework {framework!r}", hint=f"choose one of {', '.join(FRAMEWORKS)}")
    if not re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_-]{0,47}", folder.name):
        hint = "use a letter, then letters, digits, - or _; it becomes the runtime's name"
        raise ConfigError(f"{folder.name!r} is not a valid agent name", hint=hint)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        found = (path for path in sorted(folder.glob("[!.]*/**/*.py")) if path.name != "__init__.py")
        code = next((path.relative_to(folder) for path in found), None)
        hint = f"if it has an agent, name its function: --entrypoint {code}:FUNCTION" if code else "choose another name"
        raise ConfigError(f"{folder} has files, but no Python file at its top", hint=hint)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        texts = _agent_texts(folder.name, framework)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{folder} can't be written: {error.strerror}") from error
    return [folder / name for name in texts]


def _agent_texts(name: str, framework: str) -> dict[str, str]:
    known = FRAMEWORKS[framework]
    diff = read_template(f"frameworks/{framework}.diff")
    toolkit = f"agentcore-rl-toolkit[{known.extra}]" if known.extra else "agentcore-rl-toolkit"
    dependencies = (f"{toolkit}>=0.3", *known.requirements)
    local = "agentcore-rl-toolkit[" + ",".join(filter(None, ("cli", "local", known.extra))) + "]"
    values = {
        "name": name,
        "package": name.replace("_", "-").lower(),
        "framework": framework,
        "diff": diff,
        "wire": known.wire,
        "toolkit": local,
        "requirements": " ".join(f"'{text}'" for text in known.requirements),
        "dependencies": "\n".join(f'  "{text}",' for text in dependencies),
    }
    return {
        "basic_app.py": diff_side(diff, "-"),
        "rl_app.py": diff_side(diff, "+"),
        "calculator.py": read_template("calculator.txt"),
        "reward.py": read_template("reward.txt"),
        "rows.jsonl": read_template("rows.jsonl"),
        "pyproject.toml": Template(read_template("pyproject.txt")).substitute(values),
        "Dockerfile": read_template("Dockerfile"),
        ".dockerignore": read_template("dockerignore.txt"),
        ".gitignore": ".agentcore-rl.json\n.env\n__pycache__\nruns\nwheels\n",
        "README.md": Template(read_template("README.txt")).substitute(values),
    }


def diff_side(diff: str, sign: str) -> str:
    """One side of a diff of whole files: the common lines, and those with `sign`.

    >>> diff_side("-a = 1\\n+a = 2\\n b = 3\\n", "+")
    'a = 2\\nb = 3\\n'
    """
    lines = [line[1:] for line in diff.splitlines() if line[:1] in ("", " ", sign)]
    return "\n".join(lines) + "\n"


def read_template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
