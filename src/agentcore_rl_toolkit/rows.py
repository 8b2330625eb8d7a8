"""Reads a data set, one payload per row: JSONL, CSV, Parquet, a JSON array, or a Hugging Face data set, on disk or of
the Hub.

A malformed line is reported with its number; the others are used.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TextIO

from .errors import ConfigError, suggest_path

Read = tuple[list[dict[str, Any]], list[str]]
"""Rows, and problems."""


def read_rows(source: str, limit: int | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows of a file, a folder, a data set of the Hub, or of stdin for `-`, and the problems with its other lines.
    The suffix says what a file is; JSONL if it is none of `.csv`, `.parquet` and `.json`."""
    kind = "folder" if os.path.isdir(source) else os.path.splitext(source)[1].lower()
    kind = "hub" if is_hub_id(source) else kind
    rows, problems = _READERS.get(kind, _read_lines)(source)
    if not rows:
        hint = "name a file in JSONL, CSV, Parquet or JSON, or a folder that save_to_disk wrote" if problems else None
        raise ConfigError(f"{source} has no rows" + (f"; {problems[0]}" if problems else ""), hint=hint)
    return rows[:limit], problems


_SUFFIXES = (".jsonl", ".csv", ".parquet")
_ROW = "agentcore_rl_row"
_TOO_MANY = "\0"
"""Where `csv` puts the values of a line that has more of them than the header."""
_HUB_ID = re.compile(r"([\w-]+/[\w-]+(?:\.\w*\d[\w.-]*)?)(?::([\w.-]+))??(?::([\w.-]+))?")
"""Of a data set: its owner, its name, which may end in a version, and after colons its configuration and split."""


def is_hub_id(source: str) -> bool:
    """Whether it names a data set of the Hub, rather than a file or a folder.

    >>> [is_hub_id(source) for source in ("openai/gsm8k", "openai/gsm8k:main:test", "data/rows.jsonl", "rows", "/a/b")]
    [True, True, False, False, False]
    """
    is_path = os.path.exists(source) or (":" not in source and os.path.isdir(os.path.dirname(source)))
    return not is_path and _HUB_ID.fullmatch(source) is not None


def absolute_source(source: str) -> str:
    """The same data set, named for a process in another folder."""
    return source if is_hub_id(source) else os.path.abspath(source)


def row_as_prompt(row: Mapping[str, Any]) -> str:
    """A row as one text, for a service that passes nothing but a row's prompt to the agent.

    >>> row_as_prompt({"prompt": "2+2"}), row_as_prompt({"prompt": "2+2", "answer": "4"})
    ('2+2', '{"agentcore_rl_row": {"prompt": "2+2", "answer": "4"}}')
    """
    prompt = row.get("prompt")
    if isinstance(prompt, str) and len(row) == 1 and row_of_prompt(prompt) is None:
        return prompt
    return json.dumps({_ROW: dict(row)}, ensure_ascii=False)


def row_title(row: Mapping[str, Any]) -> str:
    """A row as a trainer shows it that knows only prompts; the agent gets the whole row.

    >>> row_title({"prompt": "2+2", "answer": "4"}), row_title({"question": "2+2"})
    ('2+2', '{"question": "2+2"}')
    """
    prompt = row.get("prompt")
    title = prompt if isinstance(prompt, str) else json.dumps(dict(row), default=repr)[:1000]
    return title.encode(errors="replace").decode()  # Arrow refuses half a surrogate pair


def row_of_prompt(prompt: Any) -> dict[str, Any] | None:
    """The row in such a text; None if it is a prompt of another kind.

    >>> row_of_prompt('{"agentcore_rl_row": {"answer": "4"}}'), row_of_prompt("2+2")
    ({'answer': '4'}, None)
    """
    if not isinstance(prompt, str) or not prompt.startswith(f'{{"{_ROW}":'):
        return None
    try:
        row = json.loads(prompt)[_ROW]
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _read_lines(source: str) -> Read:
    with _open(source) as file:
        return parse_rows(file)


def _read_array(source: str) -> Read:
    """A JSON array of objects; or JSON lines, under the suffix `.json`."""
    with _open(source) as file:
        text = file.read()
    if not text.lstrip().startswith("["):
        return parse_rows(io.StringIO(text))  # not splitlines(), which also splits at U+2028 within a text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{source} is not a JSON array: {error}") from None
    wrong = [f"element {i}: {_not_an_object(row)}" for i, row in enumerate(found) if not isinstance(row, dict)]
    return [row for row in found if isinstance(row, dict)], wrong


def _read_csv(source: str) -> Read:
    """A file with a header; all values are text. A column without a name, as of pandas' index, is left out."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    longest = csv.field_size_limit(sys.maxsize)
    with _open(source, newline="") as file:
        reader = csv.DictReader(file, restkey=_TOO_MANY, strict=True)
        try:
            only = "".join(reader.fieldnames or ()) if len(reader.fieldnames or ()) == 1 else ""
            if separators := set(only) & set(";\t|"):
                raise ConfigError(f"{source}: its columns are separated by {separators.pop()!r}", hint="use commas")
            for row in reader:
                if _TOO_MANY in row or None in row.values():
                    problems.append(f"line {reader.line_num}: the header has {len(reader.fieldnames or ())} columns")
                else:
                    rows.append({name: value for name, value in row.items() if name})
        except (csv.Error, UnicodeError) as error:
            raise ConfigError(f"{source} is not CSV after line {reader.line_num}: {error}") from None
        finally:
            csv.field_size_limit(longest)
    return rows, problems


def _read_parquet(source: str) -> Read:
    arrow = _arrow(source)
    try:
        return arrow.parquet.read_table(source).to_pylist(), []
    except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
        raise ConfigError(f"{source} can't be read: {error}") from None


def _read_folder(source: str) -> Read:
    """A data set that `Dataset.save_to_disk` wrote."""
    try:
        with open(os.path.join(source, "state.json"), encoding="utf-8") as file:
            names = [os.path.basename(part["filename"]) for part in json.load(file)["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError):
        splits = sorted(name for name in os.listdir(source) if os.path.isfile(os.path.join(source, name, "state.json")))
        hint = f"name one of its splits: {', '.join(splits)}" if splits else "name a file, or what save_to_disk wrote"
        raise ConfigError(f"{source} is not a Hugging Face data set", hint=hint) from None
    arrow, rows = _arrow(source), []
    for name in names:
        try:
            with arrow.memory_map(os.path.join(source, name)) as file, arrow.ipc.open_stream(file) as stream:
                rows += stream.read_all().to_pylist()
        except (OSError, ValueError, OverflowError, arrow.ArrowException) as error:
            raise ConfigError(f"{os.path.join(source, name)} can't be read: {error}") from None
    return rows, []


def _read_hub(source: str) -> Read:
    """A data set of the Hub; of its split `train` unless another one is named."""
    match = _HUB_ID.fullmatch(source)
    name, configuration, split = match.groups() if match is not None else (source, None, None)
    try:
        import datasets
    except ImportError:
        hint = "pip install datasets, or name a file"
        raise ConfigError(f"there is no file {source}, and a data set of the Hub needs datasets", hint=hint) from None
    try:
        rows = datasets.load_dataset(name, configuration, split=split or "train")
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        hint = f"name its configuration or split, {name}:SPLIT or {name}:CONFIGURATION:SPLIT; or a file"
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            hint = "check the name, and set HF_TOKEN if the data set is private or gated; or name a file"
        raise ConfigError(f"there is no file {source}, and the Hub gives none: {error}", hint=hint) from None
    return rows.data.to_pylist(), []


def _arrow(source: str) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        hint = "pip install 'agentcore-rl-toolkit[cli]', or write JSONL"
        raise ConfigError(f"reading {source} needs pyarrow, which is not installed", hint=hint) from None
    return pyarrow


_READERS: dict[str, Callable[[str], Read]] = {
    ".csv": _read_csv,
    ".json": _read_array,
    ".parquet": _read_parquet,
    "folder": _read_folder,
    "hub": _read_hub,
}


def held_out_last(name: str) -> tuple[bool, str]:
    """A key that sorts files by name, but those to evaluate on after those to train on.

    >>> sorted(["held_out.jsonl", "test.csv", "train.csv"], key=held_out_last)
    ['train.csv', 'held_out.jsonl', 'test.csv']
    """
    return any(word in name for word in ("held", "test", "eval", "valid")), name


def data_in(folder: str) -> list[str]:
    """The files in a folder that may be data sets."""
    names = sorted(os.listdir(folder or "."), key=held_out_last) if os.path.isdir(folder or ".") else []
    paths = [os.path.join(folder, name) for name in names]
    return [path for path in paths if path.endswith(_SUFFIXES) or (path.endswith(".json") and _has_array(path))]


def _has_array(path: str) -> bool:
    """Whether a JSON file has an array, as a configuration has not."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            return file.read(1024).lstrip().startswith("[")
    except (OSError, ValueError):
        return False


def rows_of(agent: str) -> str:
    """The data set in an agent's folder, used when the command line names none."""
    folder = os.path.dirname(agent) if os.path.isfile(agent) else agent
    if found := rows_in(folder):
        return found
    if not os.path.isdir(folder or "."):
        hint = suggest_path(agent) or "name an agent's file or folder; or an ARN, with its rows as --data"
        raise ConfigError(f"there is no file or folder {agent}", hint=hint)
    hint = f"name a data set with --data: {', '.join(data_in(folder)[:8]) or 'JSONL, CSV, Parquet or JSON'}"
    raise ConfigError(f"--data is missing, and {os.path.join(folder, 'rows.jsonl')} does not exist", hint=hint)


def rows_in(folder: str) -> str | None:
    """The data set in a folder: `rows` in one of the formats."""
    names = ("rows.jsonl", "rows.csv", "rows.parquet", "rows.json", os.path.join("rows", "state.json"))
    paths = [os.path.join(folder, name) for name in names]
    return next((path.removesuffix(f"{os.sep}state.json") for path in paths if os.path.isfile(path)), None)


def parse_rows(lines: Iterable[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows, and problems with their line numbers.

    >>> parse_rows(['{"prompt": "a"}', '', '{"prompt": ', '[1]'])
    ([{'prompt': 'a'}], ['line 3: Expecting value at column 12', 'line 4: a row is an object, not a list'])
    """
    rows, problems = [], []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            place = f" at column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
            problems.append(f"line {number}: {getattr(error, 'msg', error)}{place}")
            continue
        if isinstance(row, dict):
            rows.append(row)
        else:
            problems.append(f"line {number}: {_not_an_object(row)}")
    return rows, problems


def _not_an_object(row: object) -> str:
    return f"a row is an object, not a {type(row).__name__}"


@contextmanager
def _open(source: str, newline: str | None = None) -> Iterator[TextIO]:
    if source == "-":
        yield sys.stdin
        return
    try:
        file = open(source, encoding="utf-8-sig", errors="surrogateescape", newline=newline)  # noqa: SIM115
    except OSError as error:
        hint = suggest_path(source) if isinstance(error, FileNotFoundError) else None
        raise ConfigError(f"{source} can't be read: {error.strerror}", hint=hint) from None
    with file:
        yield file
