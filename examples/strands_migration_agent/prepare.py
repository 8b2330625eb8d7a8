"""The agent's data, as rows: its own projects (`python prepare.py builtin > rows.jsonl`), or those of MigrationBench.

`--pack` fetches each repository once and puts it into projects/, so that rollouts need no GitHub.
"""

import argparse
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from migration.task import Task
from migration.workspace import PROJECTS, fill

_PROMPT = "Migrate this project from Java 8 to Java 17."


def builtin() -> Iterator[dict[str, Any]]:
    """The projects that come with the agent."""
    for folder in sorted(path for path in PROJECTS.iterdir() if path.is_dir()):
        yield {"prompt": _PROMPT, "project": folder.name}


def migration_bench(name: str, split: str, dependencies: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A data set in MigrationBench's form: `repo`, `base_commit`, `num_test_cases` (negative where it isn't known)."""
    from datasets import load_dataset

    try:
        entries = load_dataset(name, split=split)
    except Exception as error:  # a dozen kinds, by what was not reached
        raise SystemExit(f"{name} can't be loaded: {error}\nhint: --dataset takes a folder, too") from error
    majors = {name: version.partition(".")[0] for name, version in dependencies.items()}
    for entry in entries:
        row = {"prompt": _PROMPT, "project": f"https://github.com/{entry['repo']}", "base_commit": entry["base_commit"]}
        if entry["num_test_cases"] >= 0:
            row["tests"] = entry["num_test_cases"]
        yield row | ({"dependencies": majors} if majors else {})


def pack(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fetch the row's repository into an archive; the row then names that."""
    name = re.sub(r"\W+", "-", row["project"].removeprefix("https://github.com/")).strip("-")
    with tempfile.TemporaryDirectory() as root:
        fill(Path(root), Task.read(row))
        with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as tar:
            for path in sorted(Path(root).rglob("*")):
                inside = path.relative_to(root)
                if path.is_file() and not path.is_symlink() and inside.parts[0] != ".git":
                    tar.add(path, str(inside))
    return {key: value for key, value in row.items() if key != "base_commit"} | {"project": name}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", choices=("builtin", "migration-bench"))
    parser.add_argument("--dataset", default="AmazonScience/migration-bench-java-selected", help="a name, or a folder")
    parser.add_argument("--split", default="test")
    parser.add_argument(
        "--dependencies", type=Path, help='JSON: {"group:artifact": "version"}; majors have to be reached'
    )
    parser.add_argument("--limit", type=int, help="only the first rows")
    parser.add_argument("--pack", action="store_true", help="fetch the repositories now, into projects/")
    args = parser.parse_args()
    dependencies = json.loads(args.dependencies.read_text()) if args.dependencies else {}
    rows = builtin() if args.source == "builtin" else migration_bench(args.dataset, args.split, dependencies)
    for index, row in enumerate(rows):
        if args.limit is not None and index >= args.limit:
            break
        try:
            print(json.dumps(pack(row, PROJECTS) if args.pack and "base_commit" in row else row), flush=True)
        except (RuntimeError, OSError) as error:
            print(f"left out: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
