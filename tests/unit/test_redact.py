from __future__ import annotations

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
