"""AppWorld's process: opens a task, runs code in it and evaluates it, as lines of JSON over a socket ask for.

Run by path, with the interpreter that has `appworld`, in its own folder; needs nothing of ours. What AppWorld
writes goes into that folder, its root, which has a link to the data.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import Any

World = Any


def open_task(message: dict[str, Any]) -> tuple[World, dict[str, Any]]:
    """A world, and what its task is."""
    from appworld import AppWorld

    world = AppWorld(
        task_id=message["task_id"],
        experiment_name="rollout",
        timeout_seconds=message["timeout_seconds"],
        max_interactions=message["max_interactions"],
    )
    return world, {"instruction": world.task.instruction}


def answer(world: World, message: dict[str, Any]) -> dict[str, Any]:
    """What is asked of an open world."""
    match message["do"]:
        case "execute":
            return {"output": world.execute(message["code"])}
        case "completed":
            return {"completed": world.task_completed()}
        case "evaluate":
            report = world.evaluate().to_dict()
            passed, failed = ([test["requirement"] for test in report[kind]] for kind in ("passes", "failures"))
            missing = report["num_tests"] - len(passed) - len(failed)
            return {"passed": passed, "failed": failed + ["a test that was not reached"] * missing}
        case other:
            raise ValueError(f"unknown request {other!r}")


def list_tasks(message: dict[str, Any]) -> dict[str, Any]:
    """The tasks of one of AppWorld's data sets, each with its instruction."""
    from appworld import load_task_ids
    from appworld.task import Task

    ids = load_task_ids(message["dataset"])[: message["limit"]]
    return {"tasks": [[task_id, Task.load(task_id, load_ground_truth=False).instruction] for task_id in ids]}


def main() -> None:
    data, descriptor = sys.argv[1], int(sys.argv[2])
    os.symlink(data, "data")
    os.environ["APPWORLD_ROOT"] = os.environ["APPWORLD_CACHE"] = os.getcwd()
    lines = socket.socket(fileno=descriptor).makefile("rwb")
    world: World = None
    for line in lines:
        message = json.loads(line)
        try:
            if message["do"] == "open":
                world, reply = open_task(message)
            elif message["do"] == "list":
                reply = list_tasks(message)
            else:
                reply = answer(world, message)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        lines.write(json.dumps(reply).encode() + b"\n")
        lines.flush()


if __name__ == "__main__":
    main()
