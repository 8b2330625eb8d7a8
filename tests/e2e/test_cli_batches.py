"""`agentcore-rl rollout` and `eval`: a data set in, outcomes and figures out."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from support.process import clean_env

CLI = str(Path(sys.executable).parent / "agentcore-rl")
AGENT = str(Path(__file__).parents[2] / "examples" / "echo_agent" / "rl_app.py")


def cli(folder: Path, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [CLI, *args]
    return subprocess.run(command, capture_output=True, text=True, input=stdin, cwd=folder, env=clean_env(), timeout=90)


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def test_a_data_set_with_a_bad_line_and_a_bad_row(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", [{"prompt": "a"}, "{bad\n", {"prompt": "b", "answer": "c"}, {"note": 1}])
    done = cli(tmp_path, "rollout", AGENT, "--data", str(data), "--exp-id", "e1", "--set", "temperature=0.5")
    assert done.returncode == 1
    assert "rows.jsonl: line 2: " in done.stderr
    outcomes = {line["index"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert [(outcomes[i]["status"], outcomes[i]["rewards"]) for i in range(3)] == [
        ("completed", 1.0),
        ("completed", 0.0),
        ("agent_error", None),
    ]
    assert outcomes[2]["error"] == "KeyError: 'prompt'"
    look = f"show {tmp_path / 'runs' / 'results'} --rollout {outcomes[2]['result_key']}"
    assert f"to see one of them: agentcore-rl {look}" in done.stderr
    assert 'File "/app/' in cli(tmp_path, *look.split()).stdout
    stored = json.loads((tmp_path / "runs" / "results" / outcomes[0]["result_key"]).read_bytes())
    assert stored["payload"]["_rollout"]["temperature"] == 0.5


def test_stdin_and_resuming(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(4))
    first = cli(tmp_path, "rollout", AGENT, "--data", "-", "--exp-id", "e1", "--limit", "2", "--quiet", stdin=rows)
    assert first.returncode == 0, first.stderr
    second = cli(tmp_path, "rollout", AGENT, "--data", "-", "--exp-id", "e1", "--resume", stdin=rows)
    lines = [json.loads(line) for line in second.stdout.splitlines()]
    assert sorted(line["index"] for line in lines if line["resumed"]) == [0, 1]
    assert len(lines) == 4
    refused = cli(tmp_path, "rollout", AGENT, "--data", "-", "--resume", stdin=rows)
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (1, "error: --resume needs --exp-id")


def test_an_evaluation_and_a_comparison(tmp_path: Path) -> None:
    good = [{"prompt": "x", "answer": "x", "input_id": f"q{n}"} for n in range(8)]
    bad = [row | {"answer": "y" if n < 6 else "x"} for n, row in enumerate(good)]
    common = ("--store", str(tmp_path / "store"), "--quiet")
    before = cli(
        tmp_path, "eval", AGENT, "--data", str(write(tmp_path / "bad.jsonl", bad)), "--exp-id", "old", *common,
        "-n", "2", "-k", "1", "-k", "2", "--output", "old.csv",
    )  # fmt: skip
    assert before.returncode == 0, before.stderr
    table = dict(line.split(maxsplit=1) for line in before.stdout.splitlines()[2:])
    assert (table["rollouts"], table["pass@1"], table["pass@2"]) == ("16", "0.25", "0.25")
    with (tmp_path / "old.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 16
    after = cli(
        tmp_path, "eval", AGENT, "--data", str(write(tmp_path / "good.jsonl", good)), "--exp-id", "new", *common,
        "--compare", "old", "--output", "reports/new.json",
    )  # fmt: skip
    assert after.returncode == 0, after.stderr
    report = json.loads((tmp_path / "reports" / "new.json").read_text())
    assert report["summary"]["reward"] == 1.0
    assert report["comparison"]["difference"] == 0.75
    assert report["comparison"]["wins"] == 6
    assert "b is better by 0.75" in after.stdout
    again = cli(
        tmp_path, "eval", AGENT, "--data", str(tmp_path / "good.jsonl"), "--exp-id", "new", "--resume", *common,
        "--output", "new.parquet",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    table_ = pyarrow.parquet.read_table(tmp_path / "new.parquet")
    assert table_.num_rows == 8
    assert set(table_.column("rewards").to_pylist()) == {1.0}


def test_a_bucket_of_this_machine_is_told_and_kept(tmp_path: Path) -> None:
    data = write(tmp_path / "rows.jsonl", [{"prompt": "x", "answer": "x", "input_id": "q"}])
    env = clean_env(XDG_DATA_HOME=str(tmp_path / "data"))
    folder = tmp_path / "data" / "agentcore-rl" / "buckets" / "my-bucket"
    command = [CLI, "eval", AGENT, "--data", str(data), "--store", "my-bucket", "--quiet"]
    for exp, more in (("old", []), ("new", ["--compare", "old"])):
        args = [*command, "--exp-id", exp, *more]
        done = subprocess.run(args, capture_output=True, text=True, cwd=tmp_path, env=env, timeout=90)
        assert done.returncode == 0, done.stderr
        assert f"experiment {exp}: 1 rollouts, results in {folder}" in done.stderr
    assert "against old" in done.stdout
    listed = cli(tmp_path, "results", str(folder), "--exp-id", "old")
    assert (listed.returncode, "completed" in listed.stdout) == (0, True)


def test_ctrl_c_stops_every_session(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text(
        "import time\nfrom agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    time.sleep(payload['seconds'])\n    return {'rewards': 1}\n"
    )
    data = write(tmp_path / "rows.jsonl", [{"seconds": 3}, {"seconds": 300}, {"seconds": 300}])
    command = [CLI, "rollout", "rl_app.py", "--data", str(data), "--exp-id", "e", "--quiet"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=clean_env())
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["index"] == 0  # the others are running
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    kinds = [
        json.loads(path.read_bytes()).get("error", {}).get("kind") for path in tmp_path.glob("runs/results/e/*/*.json")
    ]
    assert sorted(map(str, kinds)) == ["None", "session_lost", "session_lost"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("rollout", AGENT, "--data", "nowhere.jsonl"), "nowhere.jsonl can't be read: No such file"),
        (("rollout", AGENT, "--data", "empty.jsonl"), "empty.jsonl has no rows"),
        (("rollout", "nowhere.py", "--data", "one.jsonl"), "no agent found at"),
        (("rollout", AGENT, "--data", "one.jsonl", "--store", "Bad_Name"), "is not the name of a store"),
        (("rollout", AGENT, "--data", "one.jsonl", "--set", "x"), "--set x: the value is missing"),
        (("eval", AGENT, "--data", "one.jsonl", "--output", "x.txt"), "unknown file type"),
        (("eval", AGENT, "--data", "one.jsonl", "--output", "one.jsonl/x.csv"), "one.jsonl/x.csv can't be written"),
        (("eval", AGENT, "--data", "one.jsonl", "--output", "out.json"), "out.json can't be written: it is a folder"),
        (("eval", AGENT, "--data", "one.jsonl", "--compare", "nowhere"), "has no experiment 'nowhere'"),
    ],
)
def test_bad_arguments(tmp_path: Path, args: tuple[str, ...], says: str) -> None:
    write(tmp_path / "one.jsonl", [{"prompt": "x"}])
    write(tmp_path / "empty.jsonl", [])
    (tmp_path / "out.json").mkdir()
    done = cli(tmp_path, *args)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("runs/results/*"))  # refused before a rollout ran


def test_a_model_that_was_not_named_is_told(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text(
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef f(payload):\n    raise ValueError('no key')\n"
    )
    data = write(tmp_path / "rows.jsonl", [{"prompt": "x"}])
    hint = "hint: no model was named, so the agent chose its own: --model tiny"
    assert hint in cli(tmp_path, "eval", "rl_app.py", "--data", str(data)).stderr
    base_url = "http://127.0.0.1:9/v1"
    for named in (("--base-url", base_url, "--model-id", "policy"), ("--env", f"BASE_URL={base_url}")):
        assert hint not in cli(tmp_path, "eval", "rl_app.py", "--data", str(data), *named).stderr


def test_an_evaluation_says_once_what_rollouts_died_of(tmp_path: Path) -> None:
    (tmp_path / "rl_app.py").write_text(
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        "@app.rollout_entrypoint\ndef invoke(payload):\n    raise OSError(f'row {payload[\"n\"]} is gone')\n"
    )
    write(tmp_path / "rows.jsonl", [{"n": n} for n in range(5)])
    done = cli(tmp_path, "eval", "rl_app.py", "--quiet", "--base-url", "http://127.0.0.1:9/v1")
    assert done.returncode == 1
    assert "hint: a server at --base-url gets the model's name as the agent sends it" in done.stderr
    assert len([line for line in done.stderr.splitlines() if "failed" in line]) == 1
    assert "5 failed: OSError: row " in done.stderr


@pytest.mark.parametrize("named", ["./agent", "agent"])
def test_a_folder_is_its_app_and_its_rows(named: str, tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    agent.mkdir()
    code = 'payload["_rollout"].get("base_url") == "http://127.0.0.1:9/v1" and payload["_rollout"]["model_id"] == "m"'
    (agent / "rl_app.py").write_text(
        "from agentcore_rl_toolkit import AgentCoreRLApp\napp = AgentCoreRLApp()\n"
        f"@app.rollout_entrypoint\ndef invoke(payload):\n    return {{'rewards': float({code})}}\n"
    )
    refused = cli(tmp_path, "eval", named, "--quiet")
    assert refused.returncode == 1
    assert f"{named}/rows.jsonl does not exist\nhint: name a data set with --data" in refused.stderr
    write(agent / "rows.jsonl", [{"prompt": "a"}, {"prompt": "b"}])
    policy = {"BASE_URL": "http://127.0.0.1:9/v1", "MODEL_ID": "m"}
    command = [CLI, "eval", named, "--quiet", "--exp-id", "e"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=clean_env(**policy), timeout=90)
    assert done.returncode == 0, done.stderr
    table = dict(line.split(maxsplit=1) for line in done.stdout.splitlines()[2:])
    assert (table["rollouts"], table["pass@1"]) == ("2", "1")
    assert cli(tmp_path, "eval", "other.py").stderr.startswith("error: there is no file or folder other.py\nhint: name")
    by_file = subprocess.run(
        [*command[:2], f"{named}/rl_app.py", *command[3:]], capture_output=True, cwd=tmp_path, env=clean_env(**policy)
    )
    assert by_file.returncode == 0, by_file.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to every file")
def test_an_output_that_may_not_be_written_is_refused_before_rollouts_run(tmp_path: Path) -> None:
    write(tmp_path / "one.jsonl", [{"prompt": "x"}])
    (tmp_path / "out.json").touch(0o444)
    done = cli(tmp_path, "eval", AGENT, "--data", "one.jsonl", "--output", "out.json")
    assert (done.returncode, "out.json can't be written: Permission denied" in done.stderr) == (1, True)
    assert not list(tmp_path.glob("runs/results/*"))
