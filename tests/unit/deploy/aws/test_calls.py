"""Calls to AWS that a dry run prints, and answers that are not AWS's."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler

import pytest

from agentcore_rl_toolkit.deploy.aws.calls import Aws
from agentcore_rl_toolkit.errors import AwsRefused
from support.process import http_server


def test_a_dry_run_prints_policies_as_json() -> None:
    shown: list[str] = []
    aws = Aws("us-west-2", dry_run=True, say=shown.append)
    assert aws.change("iam", "put_role_policy", RoleName="r", PolicyDocument='{"a": 1}') == {}
    assert aws.change("s3", "put_object", Bucket="b", Body=b"123") == {}
    assert json.loads(shown[0].removeprefix("iam PutRolePolicy ")) == {"RoleName": "r", "PolicyDocument": {"a": 1}}
    assert '"<3 bytes>"' in shown[1]


def test_a_page_in_place_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy answers with HTML, and with status 200."""

    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html>\n<p>Please log in.\n</p>")

        def log_message(self, *args: object) -> None:
            pass

    with http_server(Page) as url:
        for name, value in {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}.items():
            monkeypatch.setenv(name, value)
        aws = Aws("us-west-2")
        with pytest.raises(AwsRefused, match=r"the call to iam failed: .*Please log in") as refused:
            aws.read("iam", "get_role", RoleName="r")
        aws.close()
    assert str(refused.value).endswith("\nhint: check the region and the network")
    assert str(refused.value).count("\n") == 1
