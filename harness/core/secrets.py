"""Secrets in texts that a run records: cut before they reach a file, since runs are sent to others.

A list of forms cannot be complete: a password without a form of its own is recognised only by the name before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

#: What stands in the place of a secret.
MASK = "(secret)"
#: Names of variables, options and parameters whose values are secrets.
SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|PWD|SIGNATURE", re.IGNORECASE)

# The user information of a URL, as RFC 3986 has it. In the second form, the password has a slash that is not escaped;
# digits and a slash after the colon are a port.
_USER = re.compile(r"(?<=://)(?:[^\s/?#]*@|[^\s/?#@:]*:(?![0-9]+/)[^\s@]*@)")
# Parameters of a URL, such as those of signed addresses.
_PARAMETER = re.compile(
    r"([?&;#](?:sig|[^=&\s]*(?:key|token|secret|passw|credential|auth|signature)[^=&\s]*)=)[^&\s]+", re.IGNORECASE
)
_SCHEME = re.compile(r"\b(bearer|basic)(\s+|%20)[\w.~+/=-]{8,}", re.IGNORECASE)
# The forms that providers give to their tokens. The default rules of gitleaks list them:
# https://github.com/gitleaks/gitleaks/blob/master/config/gitleaks.toml
_FORMS = {
    "AWS": r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    "Anthropic, OpenAI": r"sk-[\w-]{20,}",
    "Databricks": r"dapi[0-9a-f]{32}",
    "DigitalOcean": r"do[opr]_v1_[0-9a-f]{64}",
    "Docker": r"dckr_(?:pat|oat)_[\w-]{20,}",
    "GitHub": r"(?:gh[opsur]_[A-Za-z0-9]{36,}|github_pat_\w{22,})",
    "GitLab": r"gl(?:agent|cbt|dt|ft|imt|oas|pat|ptt|rt|soat)-[\w.-]{20,}",
    "Google": r"(?:AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{28})",
    "Hugging Face": r"(?:hf|api_org)_[A-Za-z0-9]{34}",
    "JSON web token": r"ey[\w-]{15,}\.ey[\w-]{15,}\.[\w-]{10,}",
    "NVIDIA": r"nvapi-[\w-]{20,}",
    "Slack": r"(?:xox[abeoprs]-[\w-]{10,}|xapp-[0-9]-[\w-]{10,})",
    "SendGrid": r"SG\.[\w-]{16,}\.[\w-]{16,}",
    "Stripe": r"[rs]k_(?:live|prod|test)_[A-Za-z0-9]{10,}",
    "Vault": r"hv[bsr]\.[\w-]{24,}",
    "npm": r"npm_[A-Za-z0-9]{36}",
    "PyPI": r"pypi-AgE[\w-]{50,}",
}
_TOKEN = re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_FORMS.values())})")
_PRIVATE_KEY = re.compile(r"-----BEGIN[A-Z ]{0,50} PRIVATE KEY.*", re.DOTALL)
_WEBHOOK = re.compile(r"(?<=hooks\.slack\.com/)[\w/-]{20,}")

# ``--api-token=…``, ``API_TOKEN=…``: an option or a variable on a command line, as far as the value.
_ASSIGNED = re.compile(r"(--?[A-Za-z][\w.-]*|[A-Za-z_][A-Za-z0-9_]*)(=)(.+)", re.DOTALL)


def mask_secrets(text: str) -> str:
    """Return the text with `MASK` for the user information and the secret parameters of URLs, and for known tokens."""
    for pattern in (_PRIVATE_KEY, _TOKEN, _WEBHOOK):
        text = pattern.sub(MASK, text)
    text = _USER.sub(f"{MASK}@", text)
    text = _PARAMETER.sub(rf"\g<1>{MASK}", text)
    return _SCHEME.sub(rf"\1\2{MASK}", text)


def mask_command(words: Iterable[str]) -> list[str]:
    """Return a command line with `MASK` for its secrets: those of each word, and the values of options named so."""
    masked: list[str] = []
    follows = False
    for word in words:
        assigned = _ASSIGNED.fullmatch(word)
        if follows and not word.startswith("-"):
            masked.append(MASK)
        elif assigned is not None and SECRET_NAME.search(assigned[1]):
            masked.append(f"{assigned[1]}={MASK}")
        else:
            masked.append(mask_secrets(word))
        follows = word.startswith("--") and assigned is None and SECRET_NAME.search(word) is not None
    return masked
