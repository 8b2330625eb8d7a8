"""The page's HTTP: anyone may load the page's files; reading runs, as JSON, needs access.

Every answer has the headers that confine the page. Questions are GET and change nothing; the one POST stops a session
of a runtime that the user named.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from ...errors import AgentCoreRLError
from . import rollout_answers, run_answers
from .page_access import HEADERS, PageAccess
from .run_answers import Query
from .run_catalog import OpenRun, RunCatalog
from .session_watch import SessionWatch

logger = logging.getLogger(__name__)

PAGE = Path(__file__).parents[1] / "page"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", "": "text/plain"}
_LONGEST_QUESTION = 4_000


class StudioApp:
    """Answers the page."""

    def __init__(
        self, catalog: RunCatalog, access: PageAccess, *, tokenizer: str | None = None, live: SessionWatch | None = None
    ) -> None:
        self.catalog, self._access, self._live = catalog, access, live
        self._tokenizer = tokenizer
        self._files = page_files()
        self._of_run: dict[str, Callable[[OpenRun, Query], Any]] = {
            "run": run_answers.show_run,
            "groups": run_answers.show_groups,
            "group": run_answers.show_group,
            "rollouts": run_answers.show_rollouts,
            "rows": run_answers.show_rows,
            "row": run_answers.show_row,
            "rollout": rollout_answers.show_rollout,
            "timeline": rollout_answers.show_timeline,
            "text": rollout_answers.show_text,
            "tokens": self._show_tokens,
            "compare": rollout_answers.show_comparison,
        }

    def application(self) -> web.Application:
        app = web.Application(client_max_size=1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        return app

    def answer(self, name: str, query: Query) -> Any:
        """The answer to one question, as JSON values."""
        if name == "runs":
            return run_answers.list_runs(self.catalog)
        ask = self._of_run.get(name)
        if ask is None:
            raise web.HTTPNotFound
        return ask(self.catalog.open(query["run"]), query)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        try:
            response = await self._route(request)
        except web.HTTPException as error:
            response = _problem(error.status, error.reason)
        except AgentCoreRLError as error:
            message, _, hint = str(error).partition("\nhint: ")
            response = _problem(400, message, hint)
        except Exception as error:
            logger.exception("a question could not be answered: %s", request.path)
            response = _problem(500, f"this could not be read: {type(error).__name__}: {error}")
        response.headers.update(HEADERS)
        return response

    async def _route(self, request: web.Request) -> web.Response:
        refusal = self._access.foreign(request)
        if refusal is not None:
            return _problem(403, refusal.message, refusal.hint)
        if request.path == "/" and "key" in request.query:
            return self._let_in(request)
        if not request.path.startswith("/api/"):
            return self._send_file(request)
        if not self._access.is_allowed(request):
            hint = "open the address that `agentcore-rl ui` printed; it ends in the key"
            return _problem(401, "reading runs needs the key", hint)
        return await self._answer(request, request.path.removeprefix("/api/"))

    async def _answer(self, request: web.Request, name: str) -> web.Response:
        query = Query({key: value[:_LONGEST_QUESTION] for key, value in request.query.items()})
        if name.startswith("live"):
            return _json(await self._ask_live(request.method, name, query))
        if request.method != "GET":
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        return _json(await asyncio.to_thread(self.answer, name, query))

    async def _ask_live(self, method: str, name: str, query: Query) -> Any:
        if self._live is None:
            return {"runtime": None, "gateway": None}
        if (method, name) == ("GET", "live"):
            return await self._live.show()
        if (method, name) == ("GET", "live/log"):
            return await self._live.read_log(query["session"], query.whole("start"))
        if (method, name) == ("POST", "live/stop"):
            return await self._live.stop(query["session"])
        raise web.HTTPNotFound

    def _show_tokens(self, run: OpenRun, query: Query) -> Any:
        """Tokens with their text, if the user named a tokenizer or the run trains the built-in policy."""
        is_tiny = run.use(lambda run: run.info.get("model")) == "tiny"
        named = self._tokenizer or ("tiny" if is_tiny else None)
        return rollout_answers.show_tokens(run, query, rollout_answers.decoder(named) if named else None)

    def _let_in(self, request: web.Request) -> web.Response:
        """Keep the key in a cookie, and lead to the same page without it."""
        if not self._access.is_key(request.query["key"]):
            return _problem(401, "this is not the key", "open the address that `agentcore-rl ui` printed")
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(self._access.cookie, self._access.key, httponly=True, samesite="Strict", path="/")
        return response

    def _send_file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.path.lstrip("/") or "index.html")
        if found is None:
            raise web.HTTPNotFound
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ["GET"])
        headers = {"Cache-Control": "no-cache"}
        return web.Response(body=found[0], content_type=found[1], charset="utf-8", headers=headers)


def page_files() -> dict[str, tuple[bytes, str]]:
    """The files of the page by their path, with their types."""
    found = (path for path in sorted(PAGE.rglob("*")) if path.is_file() and path.suffix in _KINDS)
    return {path.relative_to(PAGE).as_posix(): (path.read_bytes(), _KINDS[path.suffix]) for path in found}


def _json(value: Any, status: int = 200) -> web.Response:
    body = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    headers = {"Cache-Control": "no-store"}
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def _problem(status: int, message: str, hint: str = "") -> web.Response:
    return _json({"problem": message, "hint": hint}, status)
