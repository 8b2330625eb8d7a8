"""Data sets in every format that a verb's `--data` takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rows import read_rows, rows_of
from support.fake_hub import FakeHub
from support.process import clean_env

ROWS = [{"prompt": "a, b", "answer": "1"}, {"prompt": "ü\nx", "answer": "2"}]


def write(folder: Path, kind: str) -> str:
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(map(json.dumps, ROWS)))
    elif kind == "json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif kind == "csv":
        path.write_text('prompt,answer\n"a, b",1\n"ü\nx",2\n')
    else:
        pa = pytest.importorskip("pyarrow")
        if kind == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(ROWS), path)
        else:
            pytest.importorskip("datasets").Dataset.from_list(ROWS).save_to_disk(str(path))
    return str(path)


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "data_set"])
def test_a_format_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    assert read_rows(write(tmp_path, kind)) == (ROWS, [])
    assert read_rows(write(tmp_path / ".." / tmp_path.name, kind), limit=1)[0] == ROWS[:1]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "[1, {", "a.json is not a JSON array"),
        ("a.json", "[]", "a.json has no rows"),
        ("a.csv", "prompt,answer\n", "a.csv has no rows"),
        ("a.csv", "prompt;answer\nx;y\n", "a.csv: its columns are separated by ';'\nhint: use commas"),
        ("a.yaml", "- prompt: x\n", "column 1\nhint: name a file in JSONL, CSV, Parquet or JSON"),
        ("a.parquet", "no", "a.parquet can't be read"),
        ("a.jsonl", "[1]", "a row is an object, not a list"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_rows(str(tmp_path / name))


def test_a_bad_row_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,answer\na,1\nb\nc,3,4\nd,5\n")
    rows, problems = read_rows(str(tmp_path / "a.csv"))
    assert [row["prompt"] for row in rows] == ["a", "d"]
    assert problems == ["line 3: the header has 2 columns", "line 4: the header has 2 columns"]
    (tmp_path / "a.json").write_text('[{"a": 1}, 2]')
    assert read_rows(str(tmp_path / "a.json")) == ([{"a": 1}], ["element 1: a row is an object, not a int"])
    (tmp_path / "lines.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert read_rows(str(tmp_path / "lines.json"))[0] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("name", "text", "rows"),
    [
        ("excel.csv", "\ufeffprompt\nhi\n", [{"prompt": "hi"}]),
        ("bom.jsonl", '\ufeff{"prompt": "hi"}\n', [{"prompt": "hi"}]),
        ("bom.json", '\ufeff[{"prompt": "hi"}]', [{"prompt": "hi"}]),
        ("lines.json", '{"prompt": "a\u2028b"}\n{"prompt": "c"}\n', [{"prompt": "a\u2028b"}, {"prompt": "c"}]),
        ("pandas.csv", ",prompt\n0,hi\n", [{"prompt": "hi"}]),
        ("long.csv", f"prompt\n{'x' * 200_000}\n", [{"prompt": "x" * 200_000}]),
    ],
)
def test_what_other_programs_write_is_read(tmp_path: Path, name: str, text: str, rows: list[dict[str, str]]) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_rows(str(tmp_path / name)) == (rows, [])


def test_an_unclosed_quote_takes_no_lines_for_a_value(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('prompt\nhi\n"ho\nhu\n')
    with pytest.raises(ConfigError, match="after line 2: unexpected end of data"):
        read_rows(str(tmp_path / "a.csv"))


def test_a_value_that_python_has_not_is_an_error(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"at": pa.array([2**62], pa.timestamp("us"))})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="out of range"):
        read_rows(str(tmp_path / "a.parquet"))


def test_a_folder_names_its_splits(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a Hugging Face data set\nhint: name a file"):
        read_rows(str(tmp_path))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "state.json").write_text("{}")
    with pytest.raises(ConfigError, match="hint: name one of its splits: train"):
        read_rows(str(tmp_path))


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet", "data_set"])
def test_an_agents_folder_may_have_its_rows_in_any_format(tmp_path: Path, kind: str) -> None:
    written = Path(write(tmp_path, kind))
    expected = written.rename(tmp_path / "rows") if kind == "data_set" else written
    (tmp_path / "rl_app.py").touch()
    assert rows_of(str(tmp_path)) == rows_of(str(tmp_path / "rl_app.py")) == str(expected)
    assert read_rows(str(expected)) == (ROWS, [])


def test_without_rows_the_formats_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rows\.jsonl does not exist\nhint: name a data set with --data: JSONL, CSV"):
        rows_of(str(tmp_path))
    with pytest.raises(ConfigError, match="there is no file or folder arn:aws:x"):
        rows_of("arn:aws:x")


HUB = """
import json
import sys
from agentcore_rl_toolkit.errors import ConfigError
from agentcore_rl_toolkit.rows import absolute_source, read_rows

found = []
for source in sys.argv[1:]:
    assert absolute_source(source) == source
    try:
        found.append(read_rows(source, 1)[0][0]["prompt"])
    except ConfigError as error:
        found.append(str(error))
print(json.dumps(found))
"""
CARD = """\
---
configs:
- {config_name: main, data_files: [{split: train, path: main/train*}, {split: test, path: main/test*}]}
- {config_name: hard, data_files: [{split: train, path: hard/train*}]}
---
"""


def test_a_data_set_of_the_hub_is_loaded_by_its_name_configuration_and_split(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    for name in ("qa/train", "qa/test", "qa-v1.5/train", "math/main/train", "math/main/test", "math/hard/train"):
        path = tmp_path / "hub" / "owner" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"prompt": "{name}"}}\n')
    (tmp_path / "hub" / "owner" / "math" / "README.md").write_text(CARD)
    refused = ["owner/qa:other", "owner/math", "elsewhere/qa"]
    sources = ["owner/qa:test", "owner/qa:default:train", "owner/qa-v1.5", "owner/math:hard:train"]
    with FakeHub(tmp_path / "hub", token="hf_of_the_user").serving() as hub:
        env = clean_env(HF_ENDPOINT=hub.url, HF_TOKEN="hf_of_the_user", HF_HOME=str(tmp_path / "cache"))
        env.pop("HF_HUB_OFFLINE", None)
        command = [sys.executable, "-c", HUB, *sources, "owner/math:main:test", *refused]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=100)
    assert done.returncode == 0, done.stderr
    *found, unknown, several, missing = json.loads(done.stdout)
    assert found == ["qa/test", "qa/train", "qa-v1.5/train", "math/hard/train", "math/main/test"]
    hint = "hint: name its configuration or split, owner/{0}:SPLIT or owner/{0}:CONFIGURATION:SPLIT; or a file"
    assert unknown.startswith("there is no file owner/qa:other, and the Hub gives none: Unknown split")
    assert unknown.endswith(hint.format("qa"))
    assert "Config name is missing" in several
    assert "['main', 'hard']" in several
    assert several.endswith(hint.format("math"))
    assert "Dataset 'elsewhere/qa' doesn't exist on the Hub" in missing
    assert missing.endswith("check the name, and set HF_TOKEN if the data set is private or gated; or name a file")


def test_a_path_in_a_folder_that_exists_is_not_looked_for_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    for missing in ("data/rows", "missing/rows.jsonl"):
        with pytest.raises(ConfigError, match=f"{missing} can't be read: No such file"):
            read_rows(missing)


def test_a_mistyped_file_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("prompt\na\n")
    with pytest.raises(ConfigError, match=r"trian.csv can't be read: .*\nhint: did you mean .*/train.csv\?"):
        read_rows(str(tmp_path / "trian.csv"))


def test_a_folder_without_rows_says_which_data_it_has(tmp_path: Path) -> None:
    (tmp_path / "held.csv").write_text("prompt\na\n")
    with pytest.raises(ConfigError, match=r"hint: name a data set with --data: .*/held.csv$"):
        rows_of(str(tmp_path))
    (tmp_path / "train.jsonl").write_text("{}\n")
    (tmp_path / "questions.json").write_text('\n[{"prompt": "a"}]')
    (tmp_path / "package.json").write_text('{"name": "mine"}')
    with pytest.raises(ConfigError, match=r": [^,]*/questions.json, [^,]*/train.jsonl, [^,]*/held.csv$"):
        rows_of(str(tmp_path))
