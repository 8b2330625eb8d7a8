"""What other code relies on: names, signatures, cheap imports, and which module may import which."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import logging
import pkgutil
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tomllib
from bedrock_agentcore.runtime import BedrockAgentCoreApp

import agentcore_rl_toolkit
from support.process import clean_env

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "agentcore_rl_toolkit"
ELSEWHERE = {f"agentcore_rl_toolkit.backends.verl.{name}" for name in ("compose", "manager")}
"""Modules that need what only its own environment has (`make test-verl`)."""
MODULES = sorted(
    m.name
    for m in pkgutil.walk_packages(agentcore_rl_toolkit.__path__, "agentcore_rl_toolkit.")
    if "_child" not in m.name and m.name not in ELSEWHERE
)

NEED_TORCH = tuple(
    f"agentcore_rl_toolkit.{name}"
    for name in ("backends.trl.", "backends.verl.data", "deploy.model_export", "engine.transformers")
)
"""Modules that import torch: `make check` leaves their examples out."""

TOP = "agentcore_rl_toolkit"

# Each layer may import the ones before it, and itself.
LAYERS = [
    {"common", "errors", "rows"},
    {"config", "types"},
    {"store"},
    {"agent", "reward_function", "rewards"},
    {"engine", "runtime"},
    {"gateway"},
    {"client"},
    {"rollout"},
    {"backends", "deploy", "studio"},
    {"cli"},
]


def test_the_public_names() -> None:
    assert agentcore_rl_toolkit.__all__ == sorted(agentcore_rl_toolkit.__all__)
    assert len(agentcore_rl_toolkit.__all__) <= 16
    for name in agentcore_rl_toolkit.__all__:
        value = getattr(agentcore_rl_toolkit, name)
        assert inspect.getdoc(value), f"{name} has no docstring"
        assert name in dir(agentcore_rl_toolkit)
    with pytest.raises(AttributeError, match="Nonsense"):
        agentcore_rl_toolkit.Nonsense  # noqa: B018


def test_the_batches_of_the_first_toolkit_are_where_they_were() -> None:
    from agentcore_rl_toolkit import AsyncBatchResult, BatchItem, BatchResult, client

    assert (AsyncBatchResult, BatchItem, BatchResult) == (client.AsyncBatchResult, client.BatchItem, client.BatchResult)


def test_the_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == agentcore_rl_toolkit.__version__
    assert tuple(map(int, agentcore_rl_toolkit.__version__.split(".")[:3])) >= (0, 3, 0)


def test_importing_the_package_is_cheap() -> None:
    heavy = ["boto3", "botocore", "starlette", "bedrock_agentcore", "torch", "numpy", "pydantic", "strands", "aiohttp"]
    code = f"import sys, agentcore_rl_toolkit; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["template.template_process", "sandbox.probe"])
def test_what_starts_with_every_runtime_needs_no_http_server(module: str) -> None:
    code = f"import sys, agentcore_rl_toolkit.runtime.local.{module}; print('aiohttp' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == "False"


def test_the_command_line_starts_with_what_the_base_package_installs() -> None:
    """Even `init` and `--version` would end in a traceback otherwise."""
    code = (
        "import sys; from agentcore_rl_toolkit.cli import build_parser; build_parser();"
        "files = {name.partition('.')[0]: getattr(module, '__file__', None) for name, module in sys.modules.items()};"
        "print([name for name, file in files.items() if 'site-packages' in (file or '') and name != '_distutils_hack'])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == "[]"


def test_the_app_and_the_store_need_no_boto3_until_s3_is_used() -> None:
    code = (
        "import sys; from agentcore_rl_toolkit import RewardFunction, Status, open_store; open_store('/tmp/x');"
        "open_store('bucket'); print([m for m in ('boto3', 'starlette', 'torch') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == "[]"


def test_the_import_rule() -> None:
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        home = parts[0]
        if home == "__init__":
            continue
        assert home in rank, f"{home} has no place in LAYERS"
        for target in _imported(path, depth=len(parts)):
            assert rank[target] <= rank[home], f"{path.relative_to(ROOT)} imports {target}"


def _imported(path: Path, depth: int) -> set[str]:
    """First part below the package of everything a module imports from it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found |= {name.split(".")[0] for name in names if not name.startswith("__")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentcore_rl_toolkit."):
            found.add(str(node.module).split(".")[1])
    return found


FOLDERS = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_folder_says_which_folders_it_imports(folder: Path) -> None:
    """Its parents, `common` and the top-level modules go without saying."""
    doc = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    *_, said = doc.split("\n\n")
    names = ", ".join(f"`{name}`" for name in sorted(_imported_folders(folder)))
    assert " ".join(said.split()) == (f"Imports {names}." if names else "Imports no other station.")


def _imported_folders(folder: Path) -> set[str]:
    """Other stations, and folders of the same station that are neither parents nor within this one."""
    here, found = folder.relative_to(PACKAGE).parts, set[str]()
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.level or (node.module or "").startswith(TOP)):
                continue
            module = (node.module or "").split(".") if node.module else []
            module = [*here[: len(here) - node.level + 1], *module] if node.level else module[1:]
            found |= {_folder((*module, alias.name)) for alias in node.names}
    names = {_beside(here, tuple(name.split("."))) for name in found if name and not name.startswith("common")}
    own = ".".join(here)
    return {name for name in names if not f"{own}.".startswith(f"{name}.") and not name.startswith(f"{own}.")}


def _folder(module: tuple[str, ...]) -> str:
    """The innermost folder of a dotted name."""
    while module and not PACKAGE.joinpath(*module, "__init__.py").exists():
        module = module[:-1]
    return ".".join(module)


def _beside(here: tuple[str, ...], there: tuple[str, ...]) -> str:
    """`there`, as far as it has to be named: a station, or where the two part."""
    shared = next((n for n, (a, b) in enumerate(zip(here, there, strict=False)) if a != b), min(len(here), len(there)))
    return ".".join(there[: shared + 1])


TRANSFORMERS = {str(path.relative_to(PACKAGE)) for path in (PACKAGE / "engine/transformers").glob("*.py")}

TRL = {str(path.relative_to(PACKAGE)) for path in (PACKAGE / "backends/trl").glob("*.py")}
VERL = {f"backends/verl/{name}.py" for name in ("compose", "manager")}
WARMUP = "runtime/local/template/preload.py"  # imports an SDK only where the agent has done so
GATEWAY_HTTP = (
    "control_operations",
    "exports",
    "gateway_app",
    "http_server",
    "jobs/job_reports",
    "jobs/job_runtime_app",
    "production_app",
    "stream_sender",
)
JUDGES = {f"rewards/judges/{name}.py" for name in ("agentcore_evaluation", "judge_model")}
EXPORT = "deploy/model_export.py"
VISION = "gateway/images/vision_processor.py"
JOBS = "agent/sagemaker/job_feedback.py"
SESSION = "engine/services/training_session.py"


def test_only_its_own_files_import_a_heavy_dependency() -> None:
    homes = {
        "aiohttp": {f"runtime/local/server/{name}.py" for name in ("access", "aws_wire", "local_s3", "status_pages")}
        | {f"runtime/local/sessions/{name}.py" for name in ("app_connection", "local_session", "store_proxy")}
        | {f"gateway/http/{name}.py" for name in GATEWAY_HTTP}
        | {f"gateway/remote/{name}.py" for name in ("batch_operations", "engine_link", "gateway_client")}
        | {f"gateway/workers/{name}.py" for name in ("worker_links", "worker_router")}
        | {"gateway/gateway.py", "cli/studio/ui.py", "runtime/job_agent.py"}
        | {f"studio/server/{name}.py" for name in ("session_watch", "page_access", "studio_app")},
        "boto3": {
            "store/s3.py",
            "runtime/aws.py",
            "deploy/aws/calls.py",
            WARMUP,
            JOBS,
            SESSION,
        }
        | JUDGES,
        "botocore": {"store/s3.py", "store/s3_errors.py", "runtime/ray_actor.py", "deploy/aws/calls.py", WARMUP}
        | {JOBS, SESSION, "agent/sagemaker/job_rollout.py"}
        | JUDGES
        | {"runtime/aws.py"},
        "ray": {"runtime/ray.py", "backends/slime/driver.py"} | VERL,
        "openai": {WARMUP},
        "anthropic": {WARMUP},
        "strands": {"agent/strands.py"},
        "math_verify": {"rewards/_child.py"},
        "jsonschema": {"rewards/json_schema.py"},
        "torch": TRANSFORMERS | TRL | {"backends/verl/data.py", "backends/slime/rewards.py", EXPORT} | VERL,
        "transformers": TRANSFORMERS | TRL | {"gateway/render/tokenizer.py", VISION, EXPORT},
        "PIL": {"gateway/images/image_file.py"},
        "tinker": {"engine/services/tinker.py", "backends/tinker/convert.py", "backends/tinker/weights.py"},
        "trl": TRL,
        "datasets": TRL | {"rows.py"},
        "matplotlib": {"backends/loop/report.py"},
        "vllm": {"backends/trl/colocated.py"},
        "accelerate": TRL,
        "peft": TRL | TRANSFORMERS | {EXPORT},
        "rllm": {f"backends/rllm/{name}.py" for name in ("check_overrides", "data", "main")},
        "hydra": {f"backends/rllm/{name}.py" for name in ("check_overrides", "main")} | VERL,
        "omegaconf": VERL,
        "transfer_queue": VERL,
        "verl": VERL,
        "renderers": {"gateway/render/families.py"},
        "fastokens": {"gateway/render/tokenizer.py"},
        "numpy": {f"gateway/record/{name}.py" for name in ("trajectory", "tree")}
        | {"gateway/remote/frames.py"}
        | {"gateway/http/exports.py", VISION, "engine/remote/payload.py"}
        | {f"rollout/run_folder/{name}.py" for name in ("growing_files", "ratio_files", "rollout_files", "run_reader")}
        | {"studio/run_queries.py", "studio/server/run_answers.py", "studio/guards/facts.py"}
        | {f"backends/loop/{name}.py" for name in ("mismatch", "service_examples")}
        | {
            "backends/trl/convert.py",
            "backends/trl/teacher.py",
            "backends/tinker/weights.py",
            "rollout/signal/credit.py",
        }
        | {"backends/sagemaker/session/session_weights.py"}
        | {f"backends/verl/{name}.py" for name in ("convert", "verl_engine")}
        | TRANSFORMERS,
    }
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for root in {name.split(".")[0] for name in names} & homes.keys():
                assert str(path.relative_to(PACKAGE)) in homes[root], f"{path} imports {root}"


def test_the_app_is_a_drop_in() -> None:
    ours = inspect.signature(agentcore_rl_toolkit.AgentCoreRLApp.__init__).parameters
    theirs = inspect.signature(BedrockAgentCoreApp.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        assert ours[name].default == parameter.default
        assert ours[name].kind == parameter.kind
    assert all(p.kind is p.KEYWORD_ONLY for p in list(ours.values())[len(theirs) :])
    run = inspect.signature(agentcore_rl_toolkit.AgentCoreRLApp.run).parameters
    assert list(run) == list(inspect.signature(BedrockAgentCoreApp.run).parameters)
    paths = {getattr(route, "path", None) for route in agentcore_rl_toolkit.AgentCoreRLApp().routes}
    assert paths >= {"/invocations", "/ping", "/ws"}


def test_constructing_an_app_leaves_logging_alone() -> None:
    code = (
        "import logging; from agentcore_rl_toolkit import AgentCoreRLApp; AgentCoreRLApp(debug=True);"
        "loggers = [logging.getLogger(), logging.getLogger('bedrock_agentcore.app'), "
        "logging.getLogger('agentcore_rl_toolkit')];"
        "print([(l.handlers, l.level) for l in loggers])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_env())
    assert out.stdout.strip() == f"[([], {logging.WARNING}), ([], 0), ([], 0)]"


def test_the_decorator_gives_the_function_back() -> None:
    def invoke_agent(payload: dict[str, object]) -> dict[str, float]:
        return {"rewards": 1.0}

    assert agentcore_rl_toolkit.AgentCoreRLApp().rollout_entrypoint(invoke_agent) is invoke_agent


@pytest.mark.parametrize("name", ["agentcore_rl_toolkit", *MODULES])
def test_examples_in_docstrings_run(name: str) -> None:
    if name.startswith(NEED_TORCH):
        pytest.importorskip("torch")
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} has no docstring"
    assert doctest.testmod(module).failed == 0


def test_a_folder_has_at_most_ten_entries() -> None:
    """The top level has more: it is what users import from. `__init__.py` and data files don't count."""
    for folder in {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}:
        kept = [e for e in folder.iterdir() if e.suffix == ".py" or (e / "__init__.py").exists()]
        entries = [entry.name for entry in kept if entry.name != "__init__.py"]
        assert len(entries) <= 10, f"{folder.relative_to(PACKAGE)} has {len(entries)}: {sorted(entries)}"


def test_a_public_class_name_stands_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_unit_tests_are_in_the_folders_of_what_they_test() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")
    }
    assert {str(folder) for folder in folders if not (PACKAGE / folder).is_dir()} == set()


ROLES = {"__init__.py", "base.py", "backend.py", "convert.py", "data.py", "overrides.py", "rollout.py", "training.py"}
"""File names with one role in several folders; slime loads its `rollout.py` by name. Verbs of `cli/` are exempt."""


def test_a_file_name_stands_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        if parts[0] != "cli" and path.name not in ROLES:
            homes.setdefault(path.name, []).append("/".join(parts))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def find_private_uses(source: str) -> list[str]:
    """The package's private names in a test's source: of what it imports, and of arguments of an imported type."""
    nodes, found = list(ast.walk(ast.parse(source))), []
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and str(node.module).startswith(PACKAGE.name)]
    ours = {alias.asname or alias.name for node in imports for alias in node.names}
    ours |= {node.arg for node in nodes if isinstance(node, ast.arg) and ast.unparse(node.annotation or node) in ours}
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in ours:
                found.append(name)
            case ast.Call(args=[ast.Name(id=owner), ast.Constant(value=str(name)), *_]) if owner in ours:
                found.append(name)
            case ast.Call(args=[ast.Constant(value=str(path)), *_]) if path.startswith(PACKAGE.name):
                found.append(path.rpartition(".")[2])
            case ast.alias(name=name) if any(node in statement.names for statement in imports):
                found.append(name)
    return [name for name in found if re.match("_(?!_)", name)]


def test_no_test_uses_a_private_name_of_the_package() -> None:
    imported = "from agentcore_rl_toolkit.client import delivery, Delivery\n"
    for use in (
        "delivery._SHARE",
        "monkeypatch.setattr(delivery, '_SHARE', 1)",
        "monkeypatch.setattr('agentcore_rl_toolkit.client.delivery._SHARE', 1)",
        "from agentcore_rl_toolkit.client.delivery import _SHARE",
        "def test(made: Delivery): made._SHARE",
    ):
        assert find_private_uses(imported + use) == ["_SHARE"]
    found = {str(path): find_private_uses(path.read_text()) for path in (ROOT / "tests").rglob("*.py")}
    assert {path: names for path, names in found.items() if names} == {}


def test_what_renderers_imports_without_asking_for_it_is_asked_for_here() -> None:
    """With the newest versions of everything else, nothing else may bring it."""
    importlib.import_module("renderers")
    asked = [text for name in ("renderers", "bedrock-agentcore") for text in metadata.requires(name) or ()]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked += project["optional-dependencies"]["gateway"]
    brought = {re.match(r"[\w-]+", text)[0] for text in asked if "extra ==" not in text}  # type: ignore[index]
    loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "renderers"]
    trees = [ast.parse(Path(module.__file__ or "").read_text()) for module in loaded]
    imported = {name for tree in trees for name in _top_level_imports(tree)} - set(sys.stdlib_module_names)
    homes = metadata.packages_distributions()
    assert "openai" in imported
    assert {name for name in imported - {"renderers"} if not brought & set(homes[name])} == set()


def _top_level_imports(tree: ast.Module) -> set[str]:
    names = [alias.name for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in names}


def test_every_example_can_be_installed_alone() -> None:
    examples = [path.parent for path in (ROOT / "examples").glob("*/README.md")]
    assert [folder.name for folder in examples if not (folder / "pyproject.toml").exists()] == []


def test_every_module_is_typed() -> None:
    assert (PACKAGE / "py.typed").exists()
