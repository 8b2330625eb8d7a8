from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentcore_rl_toolkit.agent.safe_values.json_values import jsonable
from agentcore_rl_toolkit.agent.safe_values.redaction import Redactor


def test_every_secret_of_a_request_is_hidden_wherever_it_turns_up() -> None:
    payload = {
        "prompt": "hi",
        "headers": [{"Authorization": "Bearer tok-12345678"}],
        "_rollout": {"api_key": "sk-abcdefgh", "base_url": "https://gw.example/sessions/s-1.k3yk3yk3y/v1"},
    }
    redact = Redactor.of(payload)
    text = "sk-abcdefgh tok-12345678 k3yk3yk3y http://other/sessions/x.unseen/v1/chat"
    assert redact(text) == "*** *** *** http://other/sessions/x.***/v1/chat"


def test_bearer_tokens_of_aws_are_hidden_though_no_request_carried_them() -> None:
    text = "401 for sagemaker-api-key-c2FnZQ+/x== and bedrock-api-key-YmVk"
    assert Redactor()(text) == "401 for sagemaker-api-key-*** and bedrock-api-key-***"


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
    assert not any(map(redact.is_secret, ["max_tokens", "key", "prompt", "api_keys_tried", 7, None]))


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


# --- names -----------------------------------------------------------------------------------------------------------

SECRET = """
    api_key api_keys apikey apikeys x_api_key token auth_token access_token access_tokens hf_token
    github_token secret secrets client_secret secret_key private_key password passwords passwd db_password
    passphrase credentials credential aws_secret_access_key aws_session_token cookie authorization
    proxy_authorization bearer_tokens refresh_token
""".split()  # noqa: SIM905
HONEST = """
    max_tokens max_new_tokens max_completion_tokens token_ids prompt_token_ids prompt_tokens num_tokens
    tokens total_tokens input_tokens token_count tokens_per_second time_to_first_token cost_per_token
    eos_token bos_token pad_token eos_token_id tokenizer key keys result_key answer_key input_id session_id
    password_length passwords_tried secret_santa secretary author authorized model_id public_key token_usage
    last_token next_token stop_tokens keyword monkey api_key_count
""".split()  # noqa: SIM905
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(HONEST), inner, max_size=3),
    max_leaves=8,
)
credentials = st.text(alphabet="abcXYZ0189+/=.~!", min_size=8, max_size=30)


def spelled(name: str, style: str) -> str:
    """The same name as headers, environment variables, JavaScript and Java write it."""
    words = name.split("_")
    camel = words[0] + "".join(word.title() for word in words[1:])
    return {"snake": name, "upper": name.upper(), "header": "-".join(map(str.title, words)), "camel": camel,
            "pascal": camel[:1].upper() + camel[1:]}[style]  # fmt: skip


styles = st.sampled_from(["snake", "upper", "header", "camel", "pascal"])


@given(st.sampled_from(HONEST), styles, values)
def test_honest_fields_are_left_alone(name: str, style: str, value: Any) -> None:
    payload = {"row": [{spelled(name, style): value}]}
    assert jsonable(payload, redact=Redactor.of(payload)) == payload


@given(st.sampled_from(SECRET), styles, credentials, st.booleans(), st.text(alphabet="abc ", max_size=5))
def test_a_secret_is_hidden_by_name_and_wherever_its_text_appears(
    name: str, style: str, secret: str, listed: bool, around: str
) -> None:
    payload = {
        "_rollout": {spelled(name, style): [secret, {"and": secret}] if listed else secret},
        "seen": around + secret + around,
    }
    hidden = jsonable(payload, redact=Redactor.of(payload))
    assert hidden == {"_rollout": {spelled(name, style): "***"}, "seen": f"{around}***{around}"}


@given(
    st.sampled_from(["https", "http", "postgresql", "s3+http"]),
    credentials,
    credentials,
    st.sampled_from(["", "/p/q", "/?a=b"]),
)
def test_user_and_password_of_a_url_are_hidden(scheme: str, user: str, password: str, rest: str) -> None:
    user, password = quote(user, safe=""), quote(password, safe="")
    for login in (f"{user}:{password}", user, f"{user}:", f":{password}"):
        url = f"{scheme}://{login}@db.example:5432{rest}"
        payload = {"at": url}
        redact = Redactor.of(payload)
        assert redact(f"could not reach <{url}>") == f"could not reach <{scheme}://***@db.example:5432{rest}>"
        if f":{password}" in login:
            assert password not in redact(f"login failed with {password}")


@given(st.sampled_from([*SECRET, "key", "sig"]), styles, credentials, st.booleans())
def test_secrets_in_the_query_of_a_url_are_hidden(name: str, style: str, secret: str, first: bool) -> None:
    pair = f"{spelled(name, style)}={quote(secret, safe='')}"
    query = f"{pair}&max_tokens=5" if first else f"max_tokens=5&{pair}"
    payload = {"prompt": f"GET https://api.example/v1/x?{query}#top"}
    redact = Redactor.of(payload)
    for shown in (json.dumps(jsonable(payload, redact=redact)), Redactor()(payload["prompt"])):
        assert "max_tokens=5" in shown
        assert "#top" in shown
        assert f"{spelled(name, style)}=***" in shown
        assert quote(secret, safe="") not in shown
    assert redact(f"403 for {secret}") == "403 for ***"  # decoded, as a server would say it


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/users/bob@example.com",
        "https://example.com?to=bob@example.com",
        "http://127.0.0.1:8000/v1?max_tokens=5&stream=true",
        "write to bob@example.com: now",
        "git@github.com:a/b.git",
        "a == b & token",
        "?tokens=12&page=3",
    ],
)
def test_honest_urls_and_text_are_left_alone(text: str) -> None:
    assert Redactor.of({"prompt": text})(text) == text


def test_the_tokens_of_logprobs_are_no_secrets() -> None:
    """As OpenAI's `logprobs.content` has them; a `token` alone is a credential."""
    sampled = {"token": " Internationalization", "logprob": -0.1, "top_logprobs": [{"token": "a", "logprob": -0.1}]}
    payload = {"content": [sampled], "token": "ghp_0123456789"}
    assert jsonable(payload, redact=Redactor.of(payload)) == {"content": [sampled], "token": "***"}


@pytest.mark.parametrize("value", [True, False, 0, 1, 99_999, 0.5, -1.25])
def test_flags_counts_and_measures_are_no_secrets(value: Any) -> None:
    """A metric `found_secret: 1.0` must stay a number; a number long enough to be a credential is one."""
    payload = {"found_secret": value, "password": 12345678}
    redact = Redactor.of(payload)
    assert jsonable(payload, redact=redact) == {"found_secret": value, "password": "***"}
    assert redact("login with 12345678") == "login with ***"
    assert jsonable({"pin": value}, redact=Redactor(names=["pin"])) == {"pin": "***"}


def test_deeply_nested_secrets_are_found() -> None:
    value: Any = "s3cr3t-value"
    for _ in range(50_000):
        value = [value]
    assert Redactor.of({"api_key": value})("s3cr3t-value") == "***"


def test_a_long_text_is_cut_and_no_half_of_a_secret_is_left() -> None:
    redact = Redactor.of({"api_key": "secret-" * 5})
    for size in (90, 100, 101, 500, 5000, 20_000):
        text = ("secret-" * 5 + " ") * (size // 36)
        shown = redact.cut(text, 100)
        assert len(shown) <= 100
        assert "secret" not in shown
    long = Redactor.of({"api_key": "secret-" * 151})
    assert "secret" not in long.cut("secret-" * 151 * 30, 100)
    assert redact.cut("x" * 100, 100) == "x" * 100
    shown = redact.cut("a" * 50 + "b" * 10_000_000 + "c" * 50, 100)
    assert re.fullmatch(r"a+b*… [\d,]+ characters left out …b*c+", shown)
    assert len(shown) <= 100
