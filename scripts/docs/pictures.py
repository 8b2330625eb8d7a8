"""Makes the pictures of `agentcore-rl ui` for the documentation, from runs on this machine.

python scripts/docs/pictures.py runs RUN [folder for pictures]

RUN is the run below the folder `runs` that is shown; others are drawn beside it. Needs Chromium and Playwright.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from agentcore_rl_toolkit.rollout.run_folder import open_run
from agentcore_rl_toolkit.studio import run_queries

ROOT = Path(__file__).parents[2]


def views(run: str, folder: Path) -> dict[str, tuple[str, int, str]]:
    """Address, width and colours of each picture."""
    found = open_run(folder)
    step = max(run_queries.read_steps(found), key=lambda one: (one["phase"] == "train") * one["sum"]["tool_calls"])
    rollout = found.entry(
        int(found.select(phase="train", step=step["step"], sort="tool_calls", descending=True)[0])
    ).key
    rows = run_queries.read_rows(found, run_queries.HELD_OUT)
    row = next((one for one in rows if one["change"] == "learned"), rows[0])["visits"]
    here = f"#/run/{run}"
    return {
        "studio-runs": ("#/", 1280, "dark"),
        "studio-run": (here, 1280, "dark"),
        "studio-step": (f"{here}/step/train/{step['step']}", 1280, "light"),
        "studio-timeline": (f"{here}/step/train/{step['step']}?view=time", 1280, "dark"),
        "studio-rollout": (f"{here}/rollout/{rollout}", 1280, "dark"),
        "studio-tokens": (f"{here}/rollout/{rollout}?tab=tokens", 1280, "light"),
        "studio-compare": (f"{here}/compare/{row[0]['example']}/{row[-1]['example']}", 1280, "dark"),
        "studio-phone": (f"{here}/rows?phases=held-out", 390, "dark"),
    }


def main(runs: str, run: str, pictures: str = str(ROOT / "docs" / "images")) -> int:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        print("no Chromium or Chrome on PATH\nhint: apt-get install chromium", file=sys.stderr)
        return 2
    wanted = views(run, Path(runs) / run)
    command = [sys.executable, "-m", "agentcore_rl_toolkit.cli", "ui", runs, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, (view, width, scheme) in wanted.items():
            page = browser.new_page(
                viewport={"width": width, "height": 800}, color_scheme="dark" if scheme == "dark" else "light"
            )
            page.goto(address)
            page.goto(address.partition("?")[0] + view)
            page.wait_for_selector(f'main[data-ready="{view}"]', timeout=60_000)
            page.wait_for_timeout(500)  # charts are drawn after the next frame
            page.screenshot(path=Path(pictures) / f"{name}.png")
            print(Path(pictures) / f"{name}.png")
            page.close()
        browser.close()
        server.terminate()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
