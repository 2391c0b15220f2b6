"""Secrets in texts that a run records: what looks like one is replaced by `MASK`."""

from __future__ import annotations

import re

MASK = "<masked>"

_SECRETS = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                                  # AWS
    | \bgh[a-z]_[A-Za-z0-9]{30,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{20,}
    | \bhf_[A-Za-z0-9]{20,} | \bsk-[\w-]{20,} | \bxox[a-z]-[\w-]{10,}
    | \bAIza[\w-]{35} | \bya29\.[\w-]{20,}                           # Google
    | \bwandb_v\d_\w{20,}
    | (?<=://)[^\s/:@]*:[^\s/@]+(?=@)                                # a URL's user and password
    """,
    re.VERBOSE | re.DOTALL,
)
_NAMED = re.compile(
    r"""(?ix)
    (?P<name>(?:passw(?:or)?d | passphrase | secret | token | (?:api | access | secret)_?key)
        ["']?\s*(?:=|:|\ )\s*["']?)
    (?P<value>(?![\[<])
        (?:(?=[^\s"',]*\d)[^\s"',()\[\]{}]{8,} | (?<=["'])[^"'\n]{4,}(?=["'])))
    """
)
"""A value that is called a secret: with a digit, or in quotation marks, so that it is no code.

And not in brackets, as the special tokens of a vocabulary are: `[PAD]`, `<eos>`.
"""
_FOLLOWING = re.compile(
    r"(?i)(\bpassw(?:or)?d=)[^\s,\"']+ | (\bwandb\W.{0,40}?)\b[0-9a-f]{40}\b", re.VERBOSE
)


def masked(text: str) -> str:
    """Return a text without the tokens, keys and passwords that are known by their form."""
    text = _SECRETS.sub(MASK, text)
    text = _NAMED.sub(lambda match: match["name"] + MASK, text)
    return _FOLLOWING.sub(lambda match: (match[1] or match[2]) + MASK, text)
