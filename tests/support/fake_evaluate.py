"""AgentCore's Evaluate as far as the wire shows, its requests and answers checked by botocore's own service model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote

import botocore.session
from botocore.validate import ParamValidator

from support.process import http_server

MODEL = botocore.session.get_session().get_service_model("bedrock-agentcore").operation_model("Evaluate")
_CODES = {"ThrottlingException": 429, "ValidationException": 400, "AccessDeniedException": 403}


class FakeEvaluate:
    """`answers` are given in turn, the last one for ever: results, or the code of an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[dict[str, Any]] = []

    @contextmanager
    def serving(self) -> Iterator[str]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prefix = MODEL.http["requestUri"].partition("{")[0]
                assert self.path.startswith(prefix), self.path
                request = {"evaluatorId": unquote(self.path.removeprefix(prefix)), **body}
                report = ParamValidator().validate(request, MODEL.input_shape)
                assert not report.has_errors(), report.generate_report()
                service.requests.append(request)
                answer = service.answers.pop(0) if len(service.answers) > 1 else service.answers[0]
                self.answer(answer)

            def answer(self, answer: Any) -> None:
                failed = isinstance(answer, str)
                data = {"message": "refused"} if failed else {"evaluationResults": answer}
                if not failed:
                    report = ParamValidator().validate(data, MODEL.output_shape)
                    assert not report.has_errors(), report.generate_report()
                text = json.dumps(data).encode()
                self.send_response(_CODES[answer] if failed else 200)
                if failed:
                    self.send_header("x-amzn-errortype", answer)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        with http_server(Handler) as url:
            yield url


def result(value: float | None = None, **fields: Any) -> dict[str, Any]:
    """One evaluation result."""
    name = "Builtin.Helpfulness"
    known = {
        "evaluatorArn": f"arn:aws:bedrock-agentcore:::evaluator/{name}",
        "evaluatorId": name,
        "evaluatorName": name,
        "context": {"spanContext": {"sessionId": "session-1"}},
        "tokenUsage": {"inputTokens": 50, "outputTokens": 5, "totalTokens": 55},
    }
    return known | ({} if value is None else {"value": value}) | fields
