"""Headers that a web page's requests have, and hosts that are ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.common.http_guard import RequestGuard, host_name, is_loopback
from agentcore_rl_toolkit.errors import ConfigError

GUARD = RequestGuard(["runtime.internal", "10.0.0.5:8800", "fd00::5"])
ANY = RequestGuard(None)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:1",
        "127.0.0.1:80",
        "127.1.2.3",
        "[::1]",
        "[::1]:8",
        "RUNTIME.internal.",
        "10.0.0.5",
        "[fd00::5]:1",
    ],
)
def test_hosts_that_are_ours(host: str) -> None:
    assert GUARD.refusal({"Host": host}) is None


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "localhost.evil.example", "evil.example:8800", "10.0.0.6", "0.0.0.0", "[::]", "::1"),
        *("localhost@evil.example", "localhost:80:90", "localhost:port", "localhost/..", "[localhost]", "local host"),
        *("2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]", "foo.localhost", "localhost:123456"),
    ],
)
def test_hosts_that_are_not(host: str) -> None:
    refusal = GUARD.refusal({"Host": host})
    assert refusal is not None
    assert repr(host) in refusal.message
    assert "--allow-host" in refusal.hint
    assert ANY.refusal({"Host": host}) is None


def test_without_a_host_it_is_no_browser() -> None:
    """Health checks of load balancers send none."""
    assert GUARD.refusal({}) is None
    assert GUARD.refusal({"Origin": "http://evil.example"}) is not None


def test_the_address_that_a_connection_arrived_at_is_ours() -> None:
    assert GUARD.refusal({"Host": "10.1.1.1:8800"}, "10.1.1.1") is None
    assert GUARD.refusal({"Host": "[fd00::1]:8800"}, "fd00::1") is None
    assert GUARD.refusal({"Host": "10.1.1.2:8800"}, "10.1.1.1") is not None
    assert GUARD.refusal({"Host": "10.1.1.1:8800"}) is not None


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("localhost:80", {"Origin": "http://localhost"}),
        ("localhost", {"Origin": "http://localhost:80"}),
        ("localhost", {"Origin": "https://LOCALHOST:443"}),
        ("localhost:8800", {"Origin": "http://localhost:8800", "Sec-Fetch-Site": "same-origin"}),
        ("localhost:8800", {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate"}),
        ("localhost:8800", {"Sec-Fetch-Mode": "cors"}),  # Node's fetch
    ],
)
def test_requests_that_no_other_site_made(host: str, headers: dict[str, str]) -> None:
    assert GUARD.refusal({"Host": host} | headers) is None
    assert ANY.refusal({"Host": host} | headers) is None


@pytest.mark.parametrize(
    "headers",
    [
        *({"Origin": origin} for origin in ("null", "", "http://evil.example", "http://localhost", "file://", "x")),
        *(
            {"Origin": origin}
            for origin in ("https://localhost:8800.evil.example", "chrome-extension://localhost:8800")
        ),
        *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "", "something-new")),
        {"Sec-Fetch-Site": "same-origin", "Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:8800"},
    ],
)
def test_requests_of_other_sites(headers: dict[str, str]) -> None:
    for guard in (GUARD, ANY):
        refusal = guard.refusal({"Host": "localhost:8800"} | headers)
        assert refusal is not None
        assert "web page" in refusal.message


@given(st.text(), st.text(), st.text())
def test_no_header_breaks_it(host: str, origin: str, site: str) -> None:
    GUARD.refusal({"Host": host, "Origin": origin, "Sec-Fetch-Site": site}, "10.0.0.1")
    assert not is_loopback(host_name(host)) or host_name(host) == "localhost" or "127." in host or ":" in host


@pytest.mark.parametrize("name", ["", "http://x", "a b", "*", "a/b"])
def test_names_that_can_not_be_configured(name: str) -> None:
    if name == "*":
        RequestGuard([name])  # matches nothing but itself
        return
    with pytest.raises(ConfigError, match="not the name of a host"):
        RequestGuard([name])
