from __future__ import annotations

import pytest

from agentcore_rl_toolkit.redact import Redactor


def test_every_secret_of_a_request_is_hidden_wherever_it_turns_up() -> None:
    payload = {
        "prompt": "hi",
        "headers": [{"Authorization": "Bearer tok-12345678"}],
        "_rollout": {"api_key": "sk-abcdefgh", "base_url": "https://gw.example/sessions/s-1.k3yk3yk3y/v1"},
    }
    redact = Redactor.of(payload)
    text = "sk-abcdefgh tok-12345678 k3yk3yk3y http://other/sessions/x.unseen/v1/chat"
    assert redact(text) == "*** *** *** http://other/sessions/x.***/v1/chat"


def test_a_longer_secret_is_hidden_before_its_own_prefix() -> None:
    redact = Redactor.of({"api_key": ["secret-1", "secret-1-and-more"]})
    assert redact("secret-1-and-more") == "***"


def test_placeholders_and_short_values_are_left_in_honest_text() -> None:
    redact = Redactor.of({"_rollout": {"api_key": "EMPTY", "openai_api_key": "abc"}})
    assert redact("EMPTY abc") == "EMPTY abc"
    assert redact.is_secret("openai_api_key")


def test_names_are_compared_without_case_and_dashes() -> None:
    redact = Redactor(names=["Vault-Pin"])
    assert all(map(redact.is_secret, ["api_key", "API-Key", "X-Api-Key", "vault_pin", "MY_API_KEY"]))
    assert not any(map(redact.is_secret, ["max_tokens", "key", "prompt", "api_keys", 7, None]))


@pytest.mark.parametrize("secret", ["a.c(1)+$", "[secret", "back\\slash"])
def test_a_secret_is_text_and_no_pattern(secret: str) -> None:
    redact = Redactor.of({"api_key": secret})
    assert redact(f"<{secret}> a-c1") == "<***> a-c1"


def test_six_characters_are_a_secret_and_five_are_not() -> None:
    redact = Redactor.of({"api_key": ["abcdef", "vwxyz"]})
    assert redact("abcdef vwxyz") == "*** vwxyz"


@pytest.mark.parametrize("text", ["not-needed", "unused", "Not-Needed", "UNUSED"])
def test_long_placeholders_are_left_in_honest_text(text: str) -> None:
    assert Redactor.of({"api_key": text})(f"a key is {text}") == f"a key is {text}"


@pytest.mark.parametrize(
    "name", ["api_key", "apiKey", "ApiKey", "X-API-Key", "Authorization", "AWS_SECRET_ACCESS_KEY", "aws-session-token"]
)
def test_these_names_are_secret(name: str) -> None:
    redact = Redactor.of({"deep": [({name: "s3cr3t-value"},)]})
    assert redact.is_secret(name)
    assert redact("it is s3cr3t-value") == "it is ***"


@pytest.mark.parametrize(
    ("header", "credential"),
    [("Bearer tok-12345678", "tok-12345678"), ("bearer tok-1234", "tok-1234"), ("Basic dXNlcjpwdw==", "dXNlcjpwdw==")],
)
def test_a_header_is_hidden_with_and_without_its_scheme(header: str, credential: str) -> None:
    redact = Redactor.of({"Authorization": header})
    assert redact(f"{header} | {credential}") == "*** | ***"


def test_a_secret_of_two_words_is_hidden_whole() -> None:
    redact = Redactor.of({"api_key": "correct horses"})
    assert redact("correct horses, horses") == "***, horses"


def test_a_secret_is_found_however_it_is_nested() -> None:
    redact = Redactor.of({"authorization": {"basic": {"user": "user-name-1"}, "keys": [("key-value-2",)]}})
    assert redact("user-name-1 key-value-2") == "*** ***"


def test_what_follows_the_key_of_a_session_url_stays() -> None:
    text = "GET 'http://gw/sessions/s1.k3yk3y' http://gw/sessions/s1.other?a=1 http://gw/sessions/s1.third#top"
    hidden = "GET 'http://gw/sessions/s1.***' http://gw/sessions/s1.***?a=1 http://gw/sessions/s1.***#top"
    assert Redactor()(text) == hidden
