"""The page in a real browser: a run trained here, one being written, and one whose rollouts attack the page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

from agentcore_rl_toolkit.backends.trl import train
from agentcore_rl_toolkit.backends.trl.backend import TrlSettings
from agentcore_rl_toolkit.gateway.record.conversation import Transcript
from agentcore_rl_toolkit.rollout import Rollout
from agentcore_rl_toolkit.rollout.run_folder import Run, RunWriter, open_run
from agentcore_rl_toolkit.studio import run_queries
from support.agent import PROLOGUE
from support.chromium import chromium
from support.gateway import gateway, ids
from support.process import clean_env
from support.rollouts import failed, make_rollout, make_row
from support.runtime import eventually, local_runtime, needs_sandbox

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Transformers' and TRL's, a different one each release
    pytest.mark.timeout(300),
]
LONGEST_WAIT = 60_000
"""Milliseconds until a condition must hold, on a machine however busy."""

AGENT = (
    PROLOGUE
    + """
import json, random, urllib.request

TOOL = {"type": "function", "function": {"name": "calculator", "description": "Evaluate an arithmetic expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}}}

@app.rollout_entrypoint
def invoke_agent(payload):
    settings = payload["_rollout"]
    print("solving", payload["prompt"])
    messages = [{"role": "system", "content": "Solve the math problem step by step."},
                {"role": "user", "content": payload["prompt"]}]
    for turn in range(2):
        body = {"model": settings["model_id"], "messages": messages, "tools": [TOOL]}
        request = urllib.request.Request(settings["base_url"] + "/chat/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            reply = json.load(response)["choices"][0]["message"]
        messages.append(reply)
        for call in reply.get("tool_calls") or ():
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "42"})
        if not reply.get("tool_calls"):
            break
    if payload["prompt"].startswith("Break"):
        raise ValueError("broken on purpose")
    return {"rewards": random.random(), "response": reply["content"]}
"""
)
ATTACK = "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
IN_SIGHT = "a message whose role is the name of a style"
HOSTILE = f"{ATTACK} \x1b[31mred\x1b[0m \u202eevil\u202c " + "a" * 1_000_000
SIZE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
VIEWS = ("", "step", "rollouts", "rows")
TABS = ("", "tab=result", "tab=printed", "tab=tokens", "tab=rows")


@dataclass
class Studio:
    """A page that is looked at, and what went wrong on it."""

    page: Any
    url: str
    problems: list[str] = field(default_factory=list)

    def open(self, *parts: str, query: str = "") -> None:
        """Open a view, and wait until it is shown."""
        address = "#/" + "/".join(parts) + (f"?{query}" if query else "")
        self.page.goto(self.url + address)
        self.ready(address)

    def ready(self, address: str) -> None:
        self.page.wait_for_selector(f"main[data-ready={json.dumps(address)}]")

    def settle(self) -> None:
        """Wait until the view of the current address is whole: a slow one is shown in parts."""
        whole = "document.querySelector('main').dataset.ready === location.hash"
        eventually(lambda: self.page.evaluate(whole), LONGEST_WAIT / 1000)

    def click(self, selector: str) -> None:
        """Click on what leads to another view, and wait until that is shown."""
        self.page.click(selector)
        self.settle()

    def press(self, key: str) -> None:
        """Press a key that leads to another view, and wait until that is shown."""
        self.page.keyboard.press(key)
        self.settle()

    def fits(self) -> None:
        """The view must be no wider than its window, and on a phone neither."""
        for size in (SIZE, PHONE):
            self.page.set_viewport_size(size)
            eventually(lambda: self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))
        self.page.set_viewport_size(SIZE)

    def check(self) -> None:
        """Nothing may have gone wrong, been fetched from elsewhere, or run."""
        assert self.page.evaluate("window.attacked") is None
        assert self.problems == []

    @property
    def text(self) -> str:
        return str(self.page.inner_text("main"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def runs(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that was trained here, and one that attacks."""
    folder = tmp_path_factory.mktemp("studio")
    (folder / "agent").mkdir()
    (folder / "agent" / "rl_app.py").write_text(AGENT)
    for name, count in (("train", 3), ("held-out", 3)):
        rows = [
            {"prompt": f"A box holds {n + 2} eggs and {n} more. How many eggs?", "answer": f"{2 * n + 2} eggs"}
            for n in range(count)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (folder / "train.jsonl").open("a") as file:
        file.write(json.dumps({"prompt": "Break", "answer": "none"}) + "\n")
    runs = folder / "runs"
    settings = TrlSettings(
        agent=str(folder / "agent" / "rl_app.py"),
        data=str(folder / "train.jsonl"),
        eval_data=str(folder / "held-out.jsonl"),
        model="tiny",
        output=str(runs / "trained"),
        steps=2,
        rows_per_step=2,
        n=2,
        batch_size=2,
        max_tokens=24,
        device="cpu",
        concurrency=4,
    )
    train(settings)
    with RunWriter(runs / "hostile") as run, run.part("train", 0) as part:
        for number in range(2):
            part.write(attacker(number))
        part.write(failed(session_id="lost", input_id="row-1", group=0, sample=2, error=HOSTILE))
    with RunWriter(runs / "ahead") as run, run.part("train", 3) as part:
        for number in range(2):
            part.write(sampled_by_two(number))
            part.add_ratios({(f"ahead-{number}", 0): np.log([1.0, 2.5])})
    return runs


def sampled_by_two(number: int) -> Rollout:
    """A rollout of two turns under which the weights changed: rollout 0 within its first turn, rollout 1 between."""
    first = [["2", 3], ["3", 1]] if number == 0 else [["2", 4]]
    turns = []
    for at, versions in enumerate([first, [["3", 2]]]):
        turn: dict[str, Any] = {"turn": at, "before": at - 1 if at else None, "messages": [], "tools": []}
        turn |= {"started": 1e9 + 10 * at + number, "seconds": 4.0, "waited": 0.0, "prompt_tokens": 3}
        turn |= {"sampled_tokens": 4, "finish": "stop", "origin": "bridge", "unbridged": "", "masked": None}
        turn |= {"versions": versions, "parse_failures": 0}
        turns.append(turn | {"reply": {"content": f"reply {at}", "reasoning": "", "tool_calls": []}})
    transcript = Transcript.from_fields({"messages": [], "turns": turns, "left_out": 0})
    row = replace(make_row([5, 6], [7, 8]), versions=(("2", 0, 3), ("3", 3, 4)))
    made = make_rollout(0.5, row, sample=number, group=0, session_id=f"ahead-{number}")
    return replace(made, transcript=transcript, seconds={"session": 14.0, "model": 8.0})


def attacker(number: int) -> Rollout:
    """A rollout that attacks the page with every text it has."""
    turn: dict[str, Any] = {"turn": 0, "before": None, "messages": [0, 1, 2], "tools": ["search"], "started": 1.0}
    turn |= {"seconds": 1.0, "waited": 0.0, "prompt_tokens": 3, "sampled_tokens": 2, "finish": ATTACK, "origin": "x"}
    turn |= {"unbridged": ATTACK, "masked": None, "versions": [[ATTACK, 2]], "parse_failures": 0}
    calls = [{"id": "c", "name": ATTACK, "arguments": HOSTILE}]
    turn |= {"reply": {"content": f"{number} {HOSTILE}", "reasoning": HOSTILE, "tool_calls": calls}}
    messages = [{"role": "user", "content": HOSTILE}, {"role": ATTACK, "content": HOSTILE, "name": ATTACK}]
    messages.append({"role": "brief", "content": IN_SIGHT})  # a class that hides its element
    transcript = Transcript.from_fields({"messages": messages, "turns": [turn], "left_out": 0})
    more = {"payload": {"prompt": HOSTILE, ATTACK: 1}, "result": {"output": HOSTILE, "traceback": HOSTILE}}
    made = make_rollout(0.5, sample=number, group=0, session_id=f"{ATTACK}{number}", **more)
    return replace(made, transcript=transcript, printed=HOSTILE, input_id="row-1")


@contextmanager
def served(*command: str, admin_key: str = "") -> Iterator[str]:
    """`agentcore-rl ui`, as a user starts it; gives the address that it prints."""
    words = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "ui", *command, "--port", "0"]
    environment = clean_env(AGENTCORE_RL_ADMIN_KEY=admin_key)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def address(runs: Path) -> Iterator[str]:
    with served(str(runs)) as url:
        yield url


@contextmanager
def looking(browser: Any, address: str, **options: Any) -> Iterator[Studio]:
    """A new window on the page, in which nothing may go wrong."""
    context = browser.new_context(**{"viewport": SIZE} | options)
    context.set_default_timeout(LONGEST_WAIT)
    page = context.new_page()
    url = address.partition("?")[0]
    studio = Studio(page, url)
    page.on("pageerror", lambda error: studio.problems.append(str(error)))
    page.on("console", lambda line: line.type == "error" and studio.problems.append(line.text))
    page.on("request", lambda one: one.url.startswith((url, "data:")) or studio.problems.append(one.url))
    page.on("dialog", lambda dialog: studio.problems.append("dialog"))
    page.goto(address)
    studio.settle()
    try:
        yield studio
        studio.check()
    finally:
        context.close()


@pytest.fixture(scope="module")
def window(browser: Any, address: str) -> Iterator[Studio]:
    """One window for all tests: a new one for each takes longer than what most of them do."""
    with looking(browser, address) as found:
        yield found


@pytest.fixture
def studio(window: Studio) -> Iterator[Studio]:
    """The window, loaded again. Only the cookie with the key is kept."""
    window.problems.clear()
    window.page.evaluate("localStorage.clear()")
    window.page.goto(window.url)
    window.settle()
    yield window
    window.check()


@pytest.fixture(scope="module")
def trained(runs: Path) -> Run:
    return open_run(runs / "trained")


def test_runs_and_their_curves(studio: Studio, runs: Path) -> None:
    studio.page.wait_for_selector("table.runs canvas")
    assert "key=" not in studio.page.url
    summary = json.loads((runs / "trained" / "summary.json").read_text())
    line = studio.page.inner_text("tr:has-text('trained')")
    assert "ended" in line
    assert "2 / 2" in line
    assert f"{round(summary['before'], 2):g} → {round(summary['after'], 2):g}" in line
    studio.page.wait_for_selector("[data-chart=Reward] canvas")
    studio.page.fill("input[type=search]", "hostile")
    eventually(lambda: studio.page.locator("table.runs tbody tr").count() == 1)
    assert studio.page.url.endswith("#/?q=hostile")
    studio.page.reload()
    studio.page.wait_for_selector("table.runs tbody tr")
    assert (studio.page.locator("table.runs tbody tr").count(), studio.page.input_value("input")) == (1, "hostile")


def test_a_run_at_a_glance(studio: Studio, runs: Path, trained: Run) -> None:
    studio.open("run", "trained")
    summary = json.loads((runs / "trained" / "summary.json").read_text())
    assert f"{len(trained.table):,} rollouts" in studio.text
    assert f"{round(summary['before'], 2):g} → {round(summary['after'], 2):g}" in studio.text
    causes = trained.causes()
    assert [one["cause"] for one in causes] == studio.page.locator(".cause").all_inner_texts()
    for name in ("Reward", "Failures", "Fidelity", "Length", "Tokens per second", "Where the time went"):
        studio.page.wait_for_selector(f"[data-chart='{name}'] canvas")
    studio.page.click("summary:has-text('All metrics')")
    eventually(lambda: studio.page.locator("details .chart").count() > 10)


CHART = """async () => {
    const { chartCard, colour } = await import("/js/charts.js");
    const line = (label, hue) => ({ label, colour: hue, x: [0, 1, 2], y: [0, 1, 2], points: true });
    const card = chartCard({ title: "made" }, [line("first", "line-1")]);
    document.querySelector("main").append(card);
    window.change = () => card.update([line("second", "line-2")]);
    window.drawn = () => {
        const canvas = card.querySelector("canvas");
        const data = canvas ? canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data : [];
        const found = new Set();
        for (let at = 0; at < data.length; at += 4)
            found.add("#" + [...data.slice(at, at + 3)].map((one) => one.toString(16).padStart(2, "0")).join(""));
        return ["line-1", "line-2"].filter((name) => found.has(colour(name)));
    };
}"""


def test_a_chart_with_other_lines_is_drawn_anew(studio: Studio) -> None:
    studio.page.evaluate(CHART)
    eventually(lambda: studio.page.evaluate("drawn()") == ["line-1"])
    studio.page.evaluate("change()")
    eventually(lambda: studio.page.evaluate("drawn()") == ["line-2"])


def test_clicks_lead_through_a_step_to_a_rollout_and_back(studio: Studio, trained: Run) -> None:
    studio.open("run", "trained")
    studio.page.click("nav.tabs a:has-text('Steps')")
    studio.ready("#/run/trained/step")
    assert "Step 1" in studio.text
    studio.page.click(".stepper a[aria-label=previous]")
    studio.ready("#/run/trained/step/train/0")
    chosen = trained.select(phase="train", step=0)
    assert studio.page.locator(".group .chips .reward").count() == len(chosen)
    studio.click(".group a.prompt >> nth=0")
    studio.page.wait_for_selector(".samples .sample")
    entries = [trained.entry(int(at)) for at in chosen if trained.entry(int(at)).group == 0]
    assert studio.page.locator(".sample").count() == len(entries)
    answer = trained.rollout(trained.find(entries[0].key)).payload["answer"]
    assert studio.page.inner_text(".row-field") == f"answer {answer}"
    studio.click(".sample a.open >> nth=0")
    studio.page.wait_for_selector(".conversation")
    key = studio.page.url.rpartition("/")[2]
    rollout = trained.rollout(trained.find(key))
    for message in rollout.transcript.conversation(rollout.transcript.turns[-1].turn):
        assert " ".join(str(message["content"]).split())[:80] in " ".join(studio.page.text_content("main").split())
    studio.press("u")
    studio.page.wait_for_selector(".samples .sample")
    studio.press("u")
    studio.page.wait_for_selector(".groups .group")


def test_every_tab_of_a_rollout(studio: Studio, trained: Run) -> None:
    position = int(trained.select(phase="train", sort="tool_calls", descending=True)[0])
    entry, rollout = trained.entry(position), trained.rollout(position)
    assert entry.session_id
    studio.open("run", "trained", "rollout", entry.key)
    assert studio.page.locator(".slot.model").count() == len(rollout.transcript.turns)
    assert entry.session_id in studio.page.inner_text("aside")
    assert f"answer\n{rollout.payload['answer']}" in studio.page.inner_text("aside")
    assert studio.page.get_attribute("aside .reward[aria-current]", "href").endswith(f"/rollout/{entry.key}")
    studio.click("[role=tab]:has-text('Tokens')")
    studio.page.wait_for_selector(".tokens")
    row = rollout.rows[0]
    assert studio.page.locator(".tokens .token").count() == len(row.token_ids)
    trained_on = studio.page.locator(".tokens .t-0, .tokens .t-1, .tokens .t-2, .tokens .t-3").count()
    assert trained_on == int(row.loss_mask.sum())
    first = int(row.loss_mask.argmax())
    studio.page.hover(f".token[data-at='{first}']")
    studio.page.wait_for_selector(f".detail:has-text('id {row.token_ids[first]} ')")
    detail = studio.page.inner_text(".detail")
    assert f"id {row.token_ids[first]} " in detail
    assert f"logprob {float(f'{row.logprobs[first]:.4f}'):g}".replace("-0", "-0")[:14] in detail
    assert f"weights {row.versions[0][0]}" in detail
    studio.click("[role=tab]:has-text('Result')")
    studio.page.wait_for_selector("h3:has-text('Data row')")
    assert rollout.payload["prompt"] in studio.text
    studio.click("[role=tab]:has-text('Output')")
    studio.page.wait_for_selector("[aria-selected=true]:has-text('Output')")
    assert f"solving {rollout.payload['prompt']}" in studio.text
    studio.click("[role=tab]:has-text('Rows')")
    studio.page.wait_for_selector(".fold")
    assert studio.page.locator(".fold").count() == len(rollout.rows)


def test_weights_that_changed_under_a_rollout_have_lanes_of_their_own(studio: Studio) -> None:
    studio.open("run", "ahead", "rollout", "0.0")
    lanes = studio.page.locator(".timeline .lane[data-version]")
    assert [lane.get_attribute("data-version") for lane in lanes.all()] == ["2", "3"]
    assert [lane.locator(".slot").count() for lane in lanes.all()] == [1, 2]
    titles = [slot.get_attribute("title") for slot in lanes.locator(".slot").all()]
    parts = ((0, "3 tokens", 2), (0, "1 token", 3), (1, "2 tokens", 3))
    assert titles == [f"turn {turn}: {count} sampled by weights {version}" for turn, count, version in parts]
    studio.open("run", "trained", "rollout", "0.0")
    assert studio.page.locator(".timeline .lane[data-version]").count() == 0, "one version needs no lanes"


def test_the_rollouts_of_a_step_in_time(studio: Studio, trained: Run) -> None:
    studio.open("run", "ahead", "step", "train", "3")
    studio.click("button:has-text('timeline')")
    studio.page.wait_for_selector(".lanes .lane")
    assert studio.page.url.endswith("#/run/ahead/step/train/3?view=time")
    assert "began with weights 2" in studio.text
    assert studio.page.locator(".lanes a.track").count() == 2
    assert studio.page.locator(".lanes .takeover").count() == 1
    studio.click(".lanes a.track >> nth=0")
    studio.page.wait_for_selector(".conversation")
    studio.open("run", "trained", "step", "train", "0", query="view=time")
    assert studio.page.locator(".lanes a.track").count() == len(trained.select(phase="train", step=0))
    studio.open("run", "hostile", "step", "train", "0", query="view=time")
    assert studio.page.locator("main script, main img").count() == 0


def test_tokens_are_coloured_by_the_ratio_to_the_trainer_and_by_weights(studio: Studio, trained: Run) -> None:
    studio.open("run", "ahead", "rollout", "0.0", query="tab=tokens&colour=ratio")
    kinds = [one.get_attribute("class") for one in studio.page.locator(".tokens .token").all()]
    assert kinds == ["token", "token", "token t-3", "token t-0"]
    studio.page.hover(".token[data-at='3']")
    studio.page.wait_for_selector(".detail:has-text('ratio to the trainer 2.5')")
    studio.open("run", "ahead", "rollout", "0.0", query="tab=tokens&colour=weights")
    sampled = studio.page.locator(".tokens .token[style*=background]")
    assert len({one.get_attribute("style") for one in sampled.all()}) == 2
    position = int(trained.select(phase="train")[0])
    key, ratios = trained.entry(position).key, trained.log_ratios(position, 0)
    assert ratios is not None
    assert len(ratios) == int(trained.rollout(position).rows[0].loss_mask.sum())
    assert float(abs(ratios).max()) < 0.01, "the sampler has the trainer's weights"
    studio.open("run", "trained", "rollout", key, query="tab=tokens&colour=ratio")
    assert studio.page.locator(".tokens .t-3").count() == len(ratios)
    studio.open("run", "hostile", "rollout", "0.0", query="tab=tokens")
    assert studio.page.locator("select[name=colour] option[value=ratio]").count() == 0, "it is not known"


def test_filters_and_the_search(studio: Studio, trained: Run) -> None:
    studio.open("run", "trained", "rollouts", query="failed=true")
    wanted = [trained.entry(int(at)).key for at in trained.select(failed=True)]
    assert studio.page.locator("table.rollouts td:first-child").all_inner_texts() == wanted
    studio.open("run", "trained", "rollouts", query="sort=-reward&phase=train")
    best = trained.entry(int(trained.select(phase="train", sort="reward", descending=True)[0])).key
    assert studio.page.inner_text("table.rollouts td:first-child >> nth=0") == best
    longest = max(trained.entry(int(at)).sampled for at in trained.select(phase="train"))
    studio.page.fill("label:has-text('Tokens from') input", str(longest))
    studio.page.keyboard.press("Enter")
    studio.ready(f"#/run/trained/rollouts?sort=-reward&phase=train&shortest={longest}")
    lengths = studio.page.locator("table.rollouts td[data-name=tokens]").all_inner_texts()
    assert set(lengths) == {str(longest)}
    studio.open("run", "trained", "rollouts", query="phase=train")
    studio.page.fill("input[type=search]", "broken on purpose")
    studio.page.keyboard.press("Enter")
    eventually(lambda: "text=" in studio.page.url)
    studio.settle()
    found = len(trained.select(text="broken on purpose", phase="train"))
    assert found
    eventually(lambda: studio.page.locator("table.rollouts tbody tr").count() == found)
    assert set(studio.page.locator("table.rollouts mark").all_inner_texts()) == {"broken on purpose"}
    assert f"{found} found in " in studio.text


def test_rows_and_before_and_after(studio: Studio, trained: Run) -> None:
    studio.open("run", "trained", "rows", query="phases=held-out")
    assert studio.page.locator("article.row").count() == 3
    studio.click("a.compare >> nth=0")
    studio.page.wait_for_selector("header.side")
    assert [one.split()[1] for one in studio.page.locator("header.side strong").all_inner_texts()] == ["0", "2"]
    studio.press("u")
    studio.page.wait_for_selector(".conversation")
    studio.click("aside a[href*='/row/']")
    studio.page.wait_for_selector("table.rollouts")
    studio.page.click("table.rollouts input >> nth=0")
    studio.page.click("table.rollouts input >> nth=1")
    studio.click("a:has-text('compare 0.')")
    studio.page.wait_for_selector("header.side")


def test_the_keyboard(studio: Studio) -> None:
    studio.open("run", "trained", "rollout", "0.0")
    studio.page.keyboard.press("j")
    studio.ready("#/run/trained/rollout/0.1")
    studio.page.keyboard.press("k")
    studio.ready("#/run/trained/rollout/0.0")
    studio.page.keyboard.press("?")
    studio.page.wait_for_selector("dialog[open]")
    studio.page.keyboard.press("Escape")
    studio.page.wait_for_selector("dialog", state="detached")
    studio.page.keyboard.press("t")
    eventually(lambda: studio.page.evaluate("document.documentElement.dataset.theme") in ("dark", "light"))
    studio.page.keyboard.press("3")
    studio.ready("#/run/trained/rollouts")
    studio.page.keyboard.press("/")
    studio.page.wait_for_selector("input[type=search]:focus")
    studio.page.keyboard.type("eggs")
    eventually(lambda: studio.page.input_value("input[type=search]") == "eggs")


@pytest.mark.parametrize("tab", TABS)
def test_hostile_text_stays_text(studio: Studio, tab: str) -> None:
    studio.open("run", "hostile", "rollout", "0.0", query=tab)
    assert studio.page.locator("main script, main img").count() == 0
    studio.fits()
    if tab == "":
        assert studio.page.is_visible(f"text={IN_SIGHT}")
    if tab in ("", "tab=result", "tab=printed"):
        assert "<script>window.attacked = 1</script>" in studio.text
        assert {"ESC", "RLO"} <= set(studio.page.locator(".odd").all_inner_texts())
        assert "\x1b" not in studio.page.text_content("main")
        assert "\u202e" not in studio.page.text_content("main")
        before = len(studio.page.text_content("main"))
        assert before < 300_000, "a piece at a time"
        studio.page.click(".more >> nth=0")
        eventually(lambda: len(studio.page.text_content("main")) > before + 50_000)


@pytest.mark.parametrize(
    "place", ["", "step", "step/train/0/group/0", "rollouts", "rows", "row/row-1", "compare/0.0/0.1"]
)
def test_hostile_text_stays_text_in_lists(studio: Studio, place: str) -> None:
    studio.open(*filter(None, ["run", "hostile", *place.split("/")]))
    assert studio.page.locator("main script, main img").count() == 0
    studio.fits()
    assert "\u202e" not in studio.page.text_content("main")


def test_every_view_fits_its_window_and_a_phone(studio: Studio, trained: Run, tmp_path: Path) -> None:
    entry = trained.entry(int(trained.select(phase="after")[0]))
    pair = trained.select(input_id=entry.input_id)[[0, -1]]
    run = ("run", "trained")
    views = [
        (),
        ("live",),
        *((*run, *filter(None, [view])) for view in VIEWS),
        (*run, "step", "train", "0", "group", "0"),
    ]
    views += [
        (*run, "row", run_queries.row_of(entry.input_id)),
        (*run, "compare", *(trained.key(int(at)) for at in pair)),
    ]
    picture = tmp_path / "view.png"
    for parts, query in [*((one, "") for one in views), *(((*run, "rollout", "0.0"), tab) for tab in TABS)]:
        studio.open(*parts, query=query)
        studio.fits()
        studio.page.screenshot(path=picture)
        assert picture.stat().st_size > 5_000, (parts, query)


def test_the_page_is_dark_or_light_as_the_system_is(studio: Studio) -> None:
    for scheme in ("dark", "light"):
        studio.page.emulate_media(color_scheme=scheme)
        found = studio.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        assert (found == "rgb(13, 17, 23)") == (scheme == "dark")


def test_a_rollout_that_came_too_late_is_not_said_to_be_trained_on(studio: Studio, runs: Path) -> None:
    with RunWriter(runs / "late") as run, run.part("train", 0) as part:
        part.write(make_rollout(1.0, session_id="late", group=0))
        part.drop("the run ended before this step")
    studio.page.wait_for_selector("td a:has-text('late')")
    studio.open("run", "late", "rollout", "0.0", query="tab=rows")
    assert "2 of 2 sampled tokens could be trained on." in studio.text
    assert "no: the run ended before this step" in studio.text


def test_a_run_is_shown_as_it_is_written(studio: Studio, runs: Path) -> None:
    with RunWriter(runs / "growing") as run:
        studio.page.wait_for_selector("td a:has-text('growing')")
        studio.open("run", "growing", "step")
        assert "No rollout has been written yet." in studio.text
        with run.part("train", 0) as part:
            part.write(make_rollout(0.25, session_id="first", group=0))
        studio.page.wait_for_selector(".group")
        studio.open("run", "growing")
        studio.page.wait_for_selector("text=1 rollout")
        with run.part("before", 0) as part:
            for number in range(2):
                part.write(make_rollout(0.5, session_id=f"held-out-{number}", input_id=f"held-{number}"))
        with run.part("train", 1) as part, run.part("at_step", 1) as held_out:
            part.write(make_rollout(0.75, session_id="second", group=0))
            held_out.write(make_rollout(0.0, session_id="half", input_id="held-0"))
            studio.page.wait_for_selector("text=5 rollouts")
            reward = studio.page.inner_text(".tile:has-text('held-out reward') strong")
            assert reward == "0.5", "an evaluation that is half done says nothing"
            (runs / "growing" / "metrics.jsonl").write_text('{"step": 1, "reward": 0.25, "tokens_per_second": 77}\n')
            finding = {"guard": "copied", "step": 1, "action": "warn", "problem": f"bad {ATTACK}", "example": "0.0"}
            (runs / "growing" / "guards.jsonl").write_text(json.dumps(finding) + "\n")
            studio.page.wait_for_selector(".tile:has-text('77')")
            assert f"Bad {ATTACK}" in studio.page.inner_text(".finding")
            assert "from step 0" in studio.page.inner_text(".finding"), "as the page counts steps"
            studio.open()
            studio.page.wait_for_selector("tr:has-text('growing') .badge:has-text('copied')")
            studio.open("run", "growing", "step", "train", "1")
            part.write(make_rollout(0.25, session_id="third", group=0, sample=1))
            studio.page.wait_for_selector(".tile:has-text('reward'):has-text('0.5')")
            studio.open("run", "growing", "step", "train", "1", "group", "0")
            part.write(make_rollout(0.25, session_id="fourth", group=0, sample=2))
            studio.page.wait_for_selector(".sample >> nth=2")
            studio.open("run", "growing", "rows")
            part.write(make_rollout(0.25, session_id="fifth", group=1, input_id="another"))
            studio.page.wait_for_selector(".rows .row >> nth=1")


def test_runs_keep_their_places_as_they_write(studio: Studio, runs: Path) -> None:
    with RunWriter(runs / "twin-1"), RunWriter(runs / "twin-2"):
        for twin, steps in (("twin-1", 1), ("twin-2", 2)):
            lines = "".join(json.dumps({"step": step + 1, "reward": 0.5}) + "\n" for step in range(steps))
            (runs / twin / "metrics.jsonl").write_text(lines)
        os.utime(runs / "twin-1" / "metrics.jsonl", (1, 1))
        studio.page.wait_for_selector("tr:has-text('twin-2') td[data-name=steps]:has-text('2')")
        names = studio.page.locator("td[data-name=run]").all_inner_texts()
        assert names[:2] == ["twin-1", "twin-2"], "though the second wrote last"
        assert studio.page.locator(".badge.live").count() == 2
    studio.page.wait_for_selector("tr:has-text('twin-1'):has-text('unfinished')")


def test_a_report_of_many_runs_has_the_latest(tmp_path: Path) -> None:
    for number in range(9):
        metrics = tmp_path / "runs" / f"run-{number}" / "metrics.jsonl"
        metrics.parent.mkdir(parents=True)
        metrics.write_text('{"step": 1}\n')
        os.utime(metrics, (number, number))
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "ui", str(tmp_path / "runs"), "--export", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_env())
    assert "it has the latest 8 of 9 runs" in done.stderr
    assert ["run-0" in report.read_text(), "run-8" in report.read_text()] == [False, True]


def test_a_report_is_one_file_that_fetches_nothing(browser: Any, runs: Path, tmp_path: Path, trained: Run) -> None:
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "ui", str(runs), "--export", str(report)]
    done = subprocess.run(command, capture_output=True, text=True, env=clean_env())
    assert (done.returncode, done.stdout.strip()) == (0, str(report)), done.stderr
    with looking(browser, report.as_uri()) as studio:
        studio.page.click("td a:has-text('trained')")
        studio.ready("#/run/trained")
        assert f"{len(trained.table)} rollouts" in studio.text
        studio.page.wait_for_selector("[data-chart=Reward] canvas")
        for view in VIEWS[1:]:
            studio.open("run", "trained", view)
        studio.open("run", "trained", "step", query="view=time")
        studio.page.wait_for_selector(".groups .group")
        assert studio.page.locator("button:has-text('timeline')").count() == 0, "a report has no timelines"
        studio.open("run", "trained", "rollout", trained.causes()[0]["example"])
        assert "broken on purpose" in studio.text
        studio.open("run", "hostile", "rollout", "0.0")
        assert studio.page.locator("main script, main img").count() == 0
        studio.open("run", "trained", "rows")
        studio.page.wait_for_selector("a.prompt:not([href]):has-text('Break')")  # a row that the report lacks
        studio.open("run", "trained", "rollouts")
        links = studio.page.eval_on_selector_all("td a[href]", "all => all.map((one) => one.getAttribute('href'))")
        assert any("/rollout/" in link for link in links)
        for link in dict.fromkeys(links):
            studio.open(*link.removeprefix("#/").split("/"))
            assert "not in the report" not in studio.text, link
        studio.open("run", "trained", "rollout", "0.999")
        assert "not in the report" in studio.text


@needs_sandbox
def test_live_sessions_are_listed_read_and_stopped(browser: Any, runs: Path, tmp_path: Path) -> None:
    source = (
        "@app.entrypoint\ndef invoke(payload):\n    print('printed <b>here</b>', flush=True)\n    return {'ok': True}\n"
    )
    with local_runtime(tmp_path / "agent", source, port=0) as user, gateway([ids("four")]) as running:
        user.ask("session-" + "0" * 30)
        running.open_session(session_id="watched")
        url = f"http://127.0.0.1:{user.runtime.port}"
        command = (str(runs), "--runtime-url", url, "--gateway-url", running.url)
        with served(*command, admin_key=running.admin_key) as address, looking(browser, address) as studio:
            studio.open("live")
            studio.page.wait_for_selector("td:has-text('watched')")
            studio.page.click("a:has-text('session-000')")
            studio.page.wait_for_selector(".log:has-text('printed <b>here</b>')")
            studio.fits()
            studio.page.click("tr:has-text('session-000') button")
            studio.page.wait_for_selector("text=No session runs.")
