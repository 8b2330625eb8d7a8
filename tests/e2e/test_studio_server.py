"""The page's server: who may ask, what it answers, and that nothing it is asked changes or leaves the folder."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from agentcore_rl_toolkit.engine.tiny import path as tiny_path
from agentcore_rl_toolkit.rollout.run_folder import RunWriter
from agentcore_rl_toolkit.studio.server import studio_app
from agentcore_rl_toolkit.studio.server.page_access import PageAccess
from agentcore_rl_toolkit.studio.server.rollout_answers import decoder
from agentcore_rl_toolkit.studio.server.run_catalog import RunCatalog
from support.rollouts import failed, make_rollout, make_row

Ask = Callable[..., Any]


def make_run(folder: Path) -> None:
    good = make_rollout(1.0, input_id="row-1", session_id="good", group=0, printed="\x1b[31mred")
    bad = failed(input_id="row-1", session_id="bad", group=0, sample=1, error="it broke at 7")
    with RunWriter(folder) as run:
        run.describe(kind="train", model="tiny", steps=2)
        for step in (0, 1):
            with run.part("train", step) as part:
                part.write(good)
                part.write(replace(bad, result={"long": "x" * 100_000}))
    (folder / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5, "fidelity": 1.0}\n')


def serve(folder: Path, talk: Callable[[str, PageAccess], Any], host: str = "127.0.0.1") -> Any:
    """Run the server, and something that talks to it."""

    async def run() -> Any:
        access = PageAccess(host=host, port=0)
        app = studio_app.StudioApp(RunCatalog([folder]), access)
        runner = web.AppRunner(app.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await talk(f"http://127.0.0.1:{runner.addresses[0][1]}", access)
        finally:
            await runner.cleanup()

    return asyncio.run(run())


def ask(folder: Path, *paths: str, host: str = "127.0.0.1", method: str = "GET", **options: Any) -> list[Any]:
    """Status, headers and body of each answer."""

    async def talk(url: str, access: PageAccess) -> list[Any]:
        found = []
        async with aiohttp.ClientSession() as client:
            for path in paths:
                async with client.request(
                    method, url + path.replace("KEY", access.key), allow_redirects=False, **options
                ) as answer:
                    found.append((answer.status, answer.headers, await answer.text()))
        return found

    found: list[Any] = serve(folder, talk, host)
    return found


def answers(folder: Path, *paths: str) -> list[Any]:
    return [json.loads(body) for _, _, body in ask(folder, *(f"/api/{path}" for path in paths))]


def test_every_question_about_a_run(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    runs, run, groups, group, rollouts, row = answers(
        tmp_path,
        "runs",
        "run?run=first",
        "groups?run=first&step=1",
        "group?run=first&step=1&group=0",
        "rollouts?run=first&failed=true&sort=-step",
        "row?run=first&row=row-1",
    )
    assert [(one["run"], one["info"]["model"], one["steps_done"]) for one in runs["runs"]] == [("first", "tiny", 1)]
    assert (run["rollouts"], [one["failed"] for one in run["steps"]]) == (4, [1, 1])
    assert run["causes"][0] == {"cause": "agent_error: it broke at #", "rollouts": 2, "example": "0.1"}
    assert run["metrics"] == {"step": [1.0], "reward": [0.5], "fidelity": [1.0]}
    assert [sample["reward"] for sample in groups["groups"][0]["samples"]] == [1.0, None]
    assert (groups["groups"][0]["prompt"], groups["total"]) == ("hi", 1)
    assert [sample["error"] for sample in group["samples"]] == [None, "it broke at 7"]
    assert [(one["key"], one["step"]) for one in rollouts["rollouts"]] == [("0.3", 1), ("0.1", 0)]
    assert [one["step"] for one in row["rollouts"]] == [0, 0, 1, 1]


def test_every_question_about_a_rollout(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    place = '["result","long"]'
    whole, text, tokens, pair = answers(
        tmp_path,
        "rollout?run=first&key=0.1",
        f"text?run=first&key=0.1&at={place}&start=99990",
        "tokens?run=first&key=0.0",
        "compare?run=first&before=0.0&after=0.2",
    )
    assert whole["result"]["long"]["length"] == 100_000
    assert (whole["entry"]["status"], whole["previous"], whole["next"]) == ("agent_error", "0.0", None)
    assert text == {"text": "x" * 10, "length": 100_000}
    assert (tokens["ids"], tokens["mask"], tokens["logprobs"]) == (
        [1, 2, 3, 4, 5],
        [0, 0, 0, 1, 1],
        [None, None, None, -0.5, -0.5],
    )
    assert (pair["before"]["step"], pair["after"]["step"]) == (0, 1)


def test_questions_at_once_load_a_tokenizer_once(tmp_path: Path) -> None:
    shutil.copytree(tiny_path(), tmp_path / "model")
    start = threading.Barrier(4)

    def load(_: int) -> object:
        start.wait()
        return decoder(str(tmp_path / "model")).__self__  # type: ignore[attr-defined]

    with ThreadPoolExecutor(4) as pool:
        assert len({*map(id, list(pool.map(load, range(4))))}) == 1


def test_a_row_that_no_gateway_wrote_is_shown(tmp_path: Path) -> None:
    row = make_row(weight=float("nan"), versions=(("v" * 10_000, 0, 5),))
    with RunWriter(tmp_path / "first") as run, run.part("train", 0) as part:
        part.write(make_rollout(1.0, row))
    whole, tokens = answers(tmp_path, "rollout?run=first&key=0.0", "tokens?run=first&key=0.0")
    assert whole["rows"][0]["weight"] == tokens["weight"] == "nan"
    assert len(json.dumps(tokens)) < 2_000


def test_rollouts_by_reward_and_length(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "first") as run, run.part("train", 0) as part:
        for number in (1, 3, 5):
            part.write(make_rollout(float(number), make_row([1], [2] * number), session_id=str(number)))
    bounds = ("shortest=3", "longest=3", "shortest=2&longest=4", "least=3", "most=3", "least=4&longest=4")
    found = answers(tmp_path, *(f"rollouts?run=first&{one}" for one in bounds))
    lengths = [[rollout["sampled"] for rollout in one["rollouts"]] for one in found]
    assert lengths == [[3, 5], [1, 3], [3], [3, 5], [1, 3], []]


def test_a_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    first, second = answers(
        tmp_path,
        "rollouts?run=first&text=it+broke&limit=1",
        "rollouts?run=first&text=it+broke&limit=1&offset=2",
    )
    assert [one["key"] for one in first["rollouts"]] == ["0.1"]
    assert first["next"] == 2
    assert ([one["key"] for one in second["rollouts"]], second["next"]) == (["0.3"], None)


@pytest.mark.parametrize(
    "question",
    [
        "run?run=../other",
        "run?run=/etc",
        "rollout?run=first&key=../../etc/passwd",
        "rollout?run=first&key=9.9",
        "groups?run=first&step=x",
        "groups?run=first&step=-1",
        "groups?run=first&sort=nothing",
        "rollouts?run=first&sort=session_id",
        "rollouts?run=first&least=abc",
        "rollouts?run=first&longest=abc",
        "tokens?run=first&key=0.0&row=7",
        "text?run=first&key=0.0&at=[0]&start=0",
        "text?run=first&key=0.0&at={}",
        "text?run=first&key=0.0&at=no",
        "rollout?run=first",
    ],
)
def test_a_wrong_question_is_answered_with_what_is_wrong(tmp_path: Path, question: str) -> None:
    make_run(tmp_path / "runs" / "first")
    make_run(tmp_path / "other")
    ((status, _, body),) = ask(tmp_path / "runs", f"/api/{question}")
    answer = json.loads(body)
    assert (status, bool(answer["problem"])) == (400, True)
    assert "hint:" not in answer["problem"], "the page shows it below"


def test_files_of_the_page_and_no_others(tmp_path: Path) -> None:
    paths = ["/", "/js/app.js", "/css/studio.css", "/icon.svg"]
    assert [status for status, _, _ in ask(tmp_path, *paths)] == [200] * 4
    others = ["/js/", "/js/../../server/studio_app.py", "/%2e%2e/server/studio_app.py", "//etc/passwd", "/api/nothing"]
    assert [status for status, _, _ in ask(tmp_path, *others)] == [404] * 5


def test_every_answer_confines_the_page(tmp_path: Path) -> None:
    for status, headers, _ in ask(tmp_path, "/", "/api/runs", "/nothing", "/api/run?run=x"):
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';"), status
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_nothing_can_be_written(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    before = {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()}
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        for status, _, _ in ask(tmp_path, "/api/runs", "/api/run?run=first", "/", "/js/app.js", method=method):
            assert status == 405
    answers(tmp_path, "runs", "run?run=first", "rollout?run=first&key=0.0")
    assert {path: path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()} == before


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_other_sites_may_not_ask(tmp_path: Path, headers: dict[str, str], status: int) -> None:
    assert ask(tmp_path, "/api/runs", headers=headers)[0][0] == status


def test_a_link_from_another_site_leads_to_the_page_alone(tmp_path: Path) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert [one[0] for one in ask(tmp_path, "/", "/js/app.js", headers=headers)] == [200, 403]
    assert ask(tmp_path, "/", headers=headers | {"Host": "evil.example"})[0][0] == 403


def test_beyond_loopback_reading_needs_the_key(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    open_to_all, wrong, right = ask(tmp_path, "/api/runs", "/?key=wrong", "/?key=KEY", host="0.0.0.0")
    assert (open_to_all[0], wrong[0], right[0]) == (401, 401, 303)
    assert "first" not in open_to_all[2]
    cookie = right[1]["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert right[1]["Location"] == "/"

    async def with_key(url: str, access: PageAccess) -> list[int]:
        async with (
            aiohttp.ClientSession(headers={"Cookie": cookie.split(";")[0]}) as old,
            aiohttp.ClientSession() as new,
        ):
            found = []
            headers = {"Cookie": f"{access.cookie}={access.key}"}
            for client, extra in ((old, {}), (new, headers), (new, {"Authorization": f"Bearer {access.key}"})):
                async with client.get(f"{url}/api/runs", headers=extra) as answer:
                    found.append(answer.status)
            return found

    assert serve(tmp_path, with_key, "0.0.0.0") == [401, 200, 200]


def test_a_run_that_links_out_is_named_and_not_read(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "first")
    (tmp_path / "secret.json").write_text('{"secret": "word"}')
    (tmp_path / "runs" / "first" / "summary.json").symlink_to(tmp_path / "secret.json")
    ((_, _, body),) = ask(tmp_path / "runs", "/api/runs")
    assert "leads out" in json.loads(body)["runs"][0]["problem"]
    assert "word" not in body
