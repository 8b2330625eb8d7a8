"""What names an agent: a file, a folder, a module, and what a mistyped name is answered with."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.runtime.hosting.agent_code import find_agent


def made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_files_folders_and_modules(home: Path) -> None:
    made(home / "shop" / "rl_app.py")
    made(home / "package" / "__init__.py")
    made(home / "module.py")
    folder = str(home / "shop")
    for name in ("shop", "shop/", "./shop", "shop/rl_app.py"):
        assert find_agent(name) == ("shop", folder, "rl_app.py")
    for name in ("package", "module", "package.inner:app", "json"):
        assert find_agent(name)[1:] == (str(home), name)


@pytest.mark.parametrize("name", ["shop", "shop/", "./shop", "shop/rl_app.py"])
def test_a_folder_without_an_app_is_told_how_to_get_one(name: str, home: Path) -> None:
    made(home / "shop" / "main.py")
    with pytest.raises(ConfigError, match=r"found at .*/shop/rl_app.py\nhint: agentcore-rl init shop adds one"):
        find_agent(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("shopp", "did you mean shop?"),
        ("shopp/", "did you mean shop?"),
        ("shop/rl_ap.py", "did you mean shop/rl_app.py?"),
        ("something_else", "name a Python file, or module:app"),
    ],
)
def test_a_mistyped_name_is_refused_before_a_session_starts(name: str, said: str, home: Path) -> None:
    made(home / "shop" / "rl_app.py")
    with pytest.raises(ConfigError, match="no agent found at") as caught:
        find_agent(name)
    assert str(caught.value).endswith(f"hint: {said}")
