"""The commands of the production guide that need AWS, against boto3's descriptions of the services."""

from __future__ import annotations

import json
from typing import Any

import botocore.session
import pytest
from botocore import xform_name
from botocore.validate import ParamValidator

from support.docs import ROOT, blocks
from support.docs_commands import commands

PAGE = ROOT / "docs" / "guides" / "production.md"
LINES = [words for block in blocks(PAGE) if block.label == "bash" for words in commands(block.code)]
CALLS = [words for words in LINES if words[0] == "aws" and words[1] != "s3"]
GLOBAL = {"--query"}
"""Flags of the command line itself."""


@pytest.mark.parametrize("words", CALLS, ids=lambda words: " ".join(words[1:3]))
def test_a_call_fits_its_service(words: list[str]) -> None:
    service = botocore.session.get_session().get_service_model(words[1])
    if words[2] == "wait":
        return
    (name,) = (name for name in service.operation_names if xform_name(name, "-") == words[2])
    shape = service.operation_model(name).input_shape
    assert shape is not None
    known = {f"--{xform_name(member, '-')}": member for member in shape.members}
    given: dict[str, Any] = dict(zip(words[3::2], words[4::2], strict=True))
    sent = {known[flag]: value(text) for flag, text in given.items() if flag not in GLOBAL}
    assert ParamValidator().validate(sent, shape).generate_report() == ""


def test_the_policies_are_json() -> None:
    files = [block for block in blocks(PAGE) if block.label == "json"]
    assert len(files) == 2
    for block in files:
        assert {one["Effect"] for one in json.loads(block.code)["Statement"]} == {"Allow"}


def value(text: str) -> Any:
    return json.loads(text) if text[:1] in "[{" else text
