"""Opens the pages of the site in a browser: each has a title and text, fits a phone and fetches nothing elsewhere.

python scripts/docs/look.py site [folder for pictures]
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def look(page: Page, url: str, name: str, pictures: Path | None) -> list[str]:
    """What is wrong with a page."""
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(f"script: {error}"))
    page.on("requestfailed", lambda request: problems.append(f"not loaded: {request.url}"))
    page.on("request", lambda request: None if request.url.startswith((url, "data:")) else problems.append(request.url))
    answer = page.goto(f"{url}/{name}.html", wait_until="load")
    if answer is None or not answer.ok:
        problems.append(f"answered {answer and answer.status}")
    if not page.locator("h1").first.inner_text().strip() or len(page.locator("article").inner_text()) < 300:
        problems.append("has no title or no text")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        if page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            problems.append(f"is wider than a window of {width} pixels")
    if pictures is not None:
        page.screenshot(path=pictures / f"{name.replace('/', '-')}.png")
    return problems


def pages(site: Path) -> list[str]:
    """Their names; files of code and the page for errors are none."""
    found = sorted(path.relative_to(site) for path in site.rglob("*.html") if not path.stem.endswith((".code", "404")))
    return [str(path.with_suffix("")) for path in found]


def main(site: str, pictures: str | None = None) -> int:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        print("no Chromium or Chrome on PATH\nhint: apt-get install chromium", file=sys.stderr)
        return 2
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, failed = f"http://127.0.0.1:{server.server_port}", 0
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name in pages(Path(site)):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            problems = look(page, url, name, Path(pictures) if pictures else None)
            print("✗" if problems else "✓", name, *problems)
            failed += bool(problems)
            page.close()
        browser.close()
    server.shutdown()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
