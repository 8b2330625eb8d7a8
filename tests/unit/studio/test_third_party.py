"""The charts of the page are uPlot's own files, with their licence, as npm has them."""

from __future__ import annotations

import hashlib

import pytest

from agentcore_rl_toolkit.studio.server.studio_app import PAGE

UPLOT_1_6_32 = {
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
}


@pytest.mark.parametrize("name", UPLOT_1_6_32)
def test_a_file_of_uplot_is_unchanged(name: str) -> None:
    data = (PAGE / "third_party" / "uplot" / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == UPLOT_1_6_32[name]
