"""Makes AppWorld data of our own, one small task: `python make_task.py ROOT`, with the interpreter that has AppWorld.

The real data can't be part of this repository. Databases and API docs come from AppWorld's own code, so that its
loader, its shell and its evaluator run as they do on the real ones.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TASK_ID = "aaaaaaa_1"
INSTRUCTION = "What are the last four digits of my phone number?"
ANSWER = "1815"
USER = {"first_name": "Ada", "last_name": "Byron", "email": "ada@example.com", "phone_number": f"555000{ANSWER}"}
REQUIREMENT = "assert answers match."
EVALUATION = f"""
def evaluate(test, public_data, private_data, main_user, models, ground_truth_answer):
    (task,) = models.end.supervisor.Task.all()
    with test("{REQUIREMENT}"):
        test.answer(task.answer.strip('"'), ground_truth_answer)
"""


def main(root: Path) -> None:
    os.environ["APPWORLD_ROOT"] = str(root)
    from appworld.apps import get_all_apps
    from appworld.collections.api_docs import ApiDocCollection
    from appworld.common.constants import DB_VERSION

    apps = get_all_apps(skip_admin=True)
    home = root / "data" / "tasks" / TASK_ID
    make_databases(home / "dbs", [*apps, "admin"])
    moment = {"datetime": "2023-05-18T12:00:00", "db_version": DB_VERSION}
    write(home / "specs.json", {"instruction": INSTRUCTION, "supervisor": USER, **moment})
    counts = dict.fromkeys(("num_apps", "num_apis", "num_api_calls", "num_solution_code_lines"), 0)
    truth = {
        "answer": ANSWER,
        "metadata": {"difficulty": 1, "mode": "minimal", **counts},
        "private_data": {},
        "public_data": {},
        "test_data": [{"requirement": REQUIREMENT, "label": "no_op_fail"}],
    }
    for name, value in truth.items():
        write(home / "ground_truth" / f"{name}.json", value)
    (home / "ground_truth" / "evaluation.py").write_text(EVALUATION)
    for app, docs in ApiDocCollection.build(load_apps=tuple(apps)).items():
        known = {name: {**doc, "canary_string": ""} for name, doc in docs.items()}
        write(root / "data" / "api_docs" / "standard" / f"{app}.json", known)
    (root / "data" / "datasets").mkdir()
    (root / "data" / "datasets" / "train.txt").write_text(TASK_ID + "\n")


def make_databases(folder: Path, apps: list[str]) -> None:
    from appworld.collections.models import ModelCollection

    where = ":memory:made"
    models = ModelCollection.load(to_db_home_path=where, from_db_home_path=where, load_apps=apps, create_db=True)
    known = {**USER, "birthday": "1990-12-10", "sex": "female"}
    models.admin.MainUser(**known).save()
    supervisor = models.supervisor.Supervisor(**known)
    supervisor.save()
    models.supervisor.Task(supervisor_id=supervisor.id, instruction=INSTRUCTION).save()
    models.save(db_home_path=str(folder), app_names=apps, format="full", delete_if_exists=True)


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
