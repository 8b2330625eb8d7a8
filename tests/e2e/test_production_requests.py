"""The container that is trained serves: a production request to every example and template, the README's agent and
the notebook's.
"""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentcore_rl_toolkit.deploy.scaffold.new_agent import FRAMEWORKS, write_agent
from agentcore_rl_toolkit.engine.scripted import ScriptedEngine
from agentcore_rl_toolkit.runtime.local import AgentSource, LocalRuntime
from agentcore_rl_toolkit.runtime.local.agent_source import SessionPolicy
from support.example import EXAMPLES
from support.gateway import ids
from support.loop import loop_thread
from support.production import KEYS, production
from support.runtime import RuntimeUser
from support.scripted_model import ScriptedModel

README = EXAMPLES.parent / "README.md"
ONLY_FOR_ROLLOUTS = ("answer", "checks", "references")
REPLY = "That is done."
NEEDS = {
    "langgraph": ("langgraph", "langchain_openai"),
    "openai_agents": ("agents",),
    "pydantic_ai": ("pydantic_ai",),
    "claude_code": ("claude",),
    "codex": ("codex",),
}
"""What an agent imports, or the program that it runs."""
EXAMPLES_WITHOUT_URL = sorted(EXAMPLES.glob("frameworks/**/*_agent.py"))


def readme_agent(folder: Path) -> Path:
    """The README's agent after the change."""
    found = re.search(r"```diff\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    app = folder / "rl_app.py"
    app.write_text("\n".join(line[1:] for line in found[1].splitlines() if not line.startswith("-")))
    return app


def production_row(example: Path) -> dict[str, Any]:
    """An example's first row, without what only a reward needs."""
    row = json.loads((example / "rows.jsonl").read_text().splitlines()[0])
    return {name: value for name, value in row.items() if name not in ONLY_FOR_ROLLOUTS}


def ask(app: Path, env: dict[str, str], url: str, **payload: Any) -> Any:
    """What an agent in its container answers, whose model is at `url`."""
    policy = SessionPolicy(allow=(url.split("/")[2],))
    with loop_thread() as threads:
        runtime = LocalRuntime(AgentSource.parse(app, env=env, policy=policy))
        threads.run(runtime.start())
        try:
            return RuntimeUser(runtime, threads, app).ask(**payload)
        finally:
            threads.run(runtime.aclose())


def skip_unless_installed(name: str) -> None:
    missing = [need for need in NEEDS.get(name, ()) if find_spec(need) is None and shutil.which(need) is None]
    if missing:
        pytest.skip(f"{' and '.join(missing)} not installed")


def assert_answered(app: Path, variables: Any, **payload: Any) -> None:
    """The agent answers with what the served model says, and calls it with the key."""
    engine = ScriptedEngine([ids(REPLY)], context_length=200_000)  # some send prompts of 20,000 tokens
    with production(engine) as server:
        answer = ask(app, variables(server.url), server.url, prompt="What is 6 times 7?", **payload)
    text = answer if isinstance(answer, str) else answer["response"]
    assert text.strip() == REPLY
    assert "rewards" not in answer


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_new_agent_calls_the_model_of_base_url(framework: str, tmp_path: Path) -> None:
    skip_unless_installed(framework.replace("-", "_"))
    write_agent(tmp_path / "agent", framework)
    assert_answered(
        tmp_path / "agent" / "rl_app.py",
        lambda url: {"BASE_URL": f"{url}/v1", "MODEL_ID": "trained-policy", "MODEL_API_KEY": KEYS[0]},
    )


def of_the_sdks(url: str) -> dict[str, str]:
    """The variables with which clients find a model that nothing in the code names."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": KEYS[0],
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": KEYS[0],
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": url,
        "AWS_DEFAULT_REGION": "us-west-2",
        "AWS_ACCESS_KEY_ID": KEYS[0],
        "AWS_SECRET_ACCESS_KEY": "-",
        "BASE_URL": f"{url}/v1",
        "MODEL_ID": "trained-policy",
        "MODEL_API_KEY": KEYS[0],
    }


@pytest.mark.parametrize("app", EXAMPLES_WITHOUT_URL, ids=lambda app: app.stem)
def test_an_agent_that_names_no_url_calls_the_model_of_its_sdks_variables(app: Path) -> None:
    skip_unless_installed(app.stem.removesuffix("_agent"))
    assert_answered(app, of_the_sdks)


def test_the_notebooks_agent_answers(tmp_path: Path) -> None:
    cells = json.loads((EXAMPLES.parent / "docs/notebook.ipynb").read_text())["cells"]
    (source,) = ["".join(cell["source"]) for cell in cells if "def invoke_agent" in "".join(cell["source"])]
    (tmp_path / "rl_app.py").write_text(source.split('"""')[1])
    assert_answered(tmp_path / "rl_app.py", of_the_sdks)


@pytest.mark.parametrize("name", ["readme", "math", "officebench", "migration", "appworld"])
def test_a_production_request_is_answered_by_the_model_in_production(name: str, tmp_path: Path) -> None:
    home = EXAMPLES / f"strands_{name}_agent"
    app = readme_agent(tmp_path) if name == "readme" else home / "rl_app.py"
    payload = {"prompt": "What is 6 times 7?"} if name == "readme" else production_row(home)
    with ScriptedModel(lambda body: {"content": REPLY}).serving() as model:
        env = {"BASE_URL": model.base_url, "MODEL_ID": "trained-policy"}
        answer = ask(app, env, model.base_url, **payload)
    text = answer if isinstance(answer, str) else answer["response"]
    assert text.strip() == REPLY
    assert "rewards" not in answer
    assert {request["model"] for request in model.requests} == {"trained-policy"}
