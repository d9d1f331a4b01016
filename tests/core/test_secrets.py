"""Secrets are cut out of what a run records: user information of URLs, known tokens, values of options named so."""

from __future__ import annotations

import pytest

from harness.core.secrets import MASK, mask_command, mask_secrets

A40 = "a1B2c3D4e5" * 4
#: Built of parts: scanners of this repository look for whole tokens.
TOKENS = [
    "AKIA" + "ABCDEFGH12345678",
    "sk-" + A40,
    "dapi" + "0123456789abcdef" * 2,
    "dop_v1_" + "0123456789abcdef" * 4,
    "dckr_pat_" + A40[:27],
    "ghp_" + A40[:36],
    "github_pat_" + A40,
    "glpat-" + A40[:20],
    "AIza" + A40[:35],
    "hf_" + A40[:34],
    "eyJhbGciOiJIUzI1NiJ9" + ".eyJzdWIiOiIxMjM0NTY3ODkwIn0." + A40,
    "nvapi-" + A40,
    "xoxb-" + "123456789012-abcdef",
    "SG." + A40[:22] + "." + A40,
    "sk_live_" + A40[:24],
    "hvs." + A40,
    "npm_" + A40[:36],
    "pypi-AgE" + A40 + A40,
    "-----BEGIN OPENSSH" + " PRIVATE KEY-----\nb3BlbnNzaC1rZXk",
]


@pytest.mark.parametrize("token", TOKENS)
def test_a_known_token_is_masked_wherever_it_stands(token: str) -> None:
    assert mask_secrets(token) == MASK
    assert token not in mask_secrets(f"--odd='x {token}'")
    assert mask_command(["pytest", f"--odd={token}", "suites"]) == ["pytest", f"--odd={MASK}", "suites"]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://u:PW@h:6379/0", "redis://(secret)@h:6379/0"),
        ("redis://:PW@h", "redis://(secret)@h"),
        ("redis://:p@ss@h", "redis://(secret)@h"),
        ("redis://u:p/w@h", "redis://(secret)@h"),
        ("https://token@h/x?y=1", "https://(secret)@h/x?y=1"),
        ("a=http://u:x@h,b=http://v:y@h", "a=http://(secret)@h,b=http://(secret)@h"),
        ("https://h/x?sig=abc&v=1&access_token=t", "https://h/x?sig=(secret)&v=1&access_token=(secret)"),
        ("Authorization: Bearer abcdefgh.12", "Authorization: Bearer (secret)"),
        ("https://hooks.slack.com/services/T000/B000/" + "x" * 24, "https://hooks.slack.com/(secret)"),
    ],
)
def test_addresses(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked
    assert mask_secrets(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "",
        "git+https://github.com/x/y@v1",
        "https://h:80/path@v1",
        "https://h/x?design=1",
        "suites/a/test_a.py::test_key[TOKEN=x-sk-1]",
        "backend:cudaMallocAsync,max_split_size_mb:512",
        "sha256:" + "0123456789abcdef" * 4,
        "task-" + "a" * 40,
        "user@host",
    ],
)
def test_other_texts_are_unchanged(text: str) -> None:
    assert mask_secrets(text) == text
    assert mask_command([text]) == [text]


def test_values_of_options_and_variables_whose_names_say_so() -> None:
    words = ["pytest", "--api-token", "x", "--password=y", "DB_PASSWORD=z", "--auth", "-n2", "-k", "key", "suites"]
    masked = ["pytest", "--api-token", MASK, f"--password={MASK}", f"DB_PASSWORD={MASK}", "--auth", *words[6:]]
    assert mask_command(words) == masked
    assert mask_command(masked) == masked
