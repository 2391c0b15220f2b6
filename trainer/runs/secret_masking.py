"""Secrets in what a run records, shows or sends: each is replaced by `MASK`.

`shown` is between the configuration and everything that is not `config.yaml`: a value is a
secret by the name of its key, at any length, or by its form. `masked` does the same for a text.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

MASK = "<masked>"

_SECRETS = re.compile(
    r"""
    -----BEGIN\ [A-Z ]*PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]*PRIVATE\ KEY-----|\Z)
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b                                  # AWS
    | \bgh[a-z]_[A-Za-z0-9]{30,} | \bgithub_pat_\w{20,} | \bglpat-[\w-]{20,}
    | \bhf_[A-Za-z0-9]{20,} | \bsk-[\w-]{20,} | \bxox[a-z]-[\w-]{10,}
    | \bAIza[\w-]{35} | \bya29\.[\w-]{20,}                           # Google
    | \bwandb_v\d_\w{20,} | \beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]+      # JSON Web Tokens
    | (?<=://)[^\s/:@]*:[^\s/]+(?=@)                                 # a URL's user and password
    """,
    re.VERBOSE | re.DOTALL,
)
_FOLLOWING = re.compile(
    r"""(?ix)
    (\bwandb\W.{0,40}?)\b[0-9a-f]{40}\b
    | (\b(?:bearer|basic)\s+)[\w.~+/-]{8,}=*
    | ([?&](?:sig|key|code|x-(?:amz|goog)-[a-z-]*(?:signature|credential|token))=)[^&\s"']+
    """
)
_NO_SECRETS = {
    "mask", "pad", "padding", "eos", "bos", "unk", "unknown", "oov", "cls", "class", "sep",
    "start", "end", "stop", "special", "max", "min", "num",
}  # fmt: skip
"""First words of names such as `pad_token`."""

_NAME = re.compile(
    r"""(?x)
    (?:^|_) (?: (?:passwords?|passwd|pwd|passphrase|passcode|secrets?|credentials?
                | (?:api|access|secret|private|account|encryption|signing)_?keys?)(?:_|\d|$)
            | (?:auth|authorization|bearer|\w*token)_?\d*$ )
    """
)
_WORD = re.compile(r"(?i)passw|pwd|passphrase|passcode|secret|credential|key|auth|bearer|token")
_ASSIGNED = re.compile(
    r"""(?x)
    (?P<name>(?<![\w.-])-{0,2}[A-Za-z_][\w.-]*)
    (?:["']?[ \t]*[=:][ \t]*|(?P<gap>[ ]))
    (?:[bruf]{0,2}(?P<quote>["'])(?P<quoted>(?:(?!(?P=quote)).)+)(?P=quote)
    | (?P<bare>(?![\[<("'=])(?:
        (?<==)[^\s"',]+                          # `secret=hunter2`
        | (?<=:\ )[^"',\n{}\[\]()]+              # `secret: hunter2`, to the end
        | [^\s"',;(){}\[\]<>]+(?![\w.(\[<]) )))  # but no call: `token = read(...)`
    """
)
_OPENED = re.compile(r"""(?<![\w.-])([A-Za-z_][\w.-]*)["']?[ \t]*[=:][ \t]*([\[{])""")
_BRACKET = re.compile(r"[\[{}\]\n]")
_NO_VALUES = {"null", "none", "true", "false", ""}


def shown(value: Any, key: str = "") -> Any:
    """Return a value, or a (nested or dotted) mapping, as it is recorded, shown and sent."""
    if isinstance(value, Mapping):
        return {name: shown(item, f"{key}.{name}") for name, item in value.items()}
    if value in (None, "", [], ()) or isinstance(value, bool):
        return value
    if _is_secret(key):
        return MASK
    if isinstance(value, list | tuple):
        return [shown(item, key) for item in value]
    return masked(value) if isinstance(value, str) else value


def shown_word(word: str) -> str:
    """Return a word of a command line, such as an override, as it is recorded."""
    key, sign, value = word.partition("=")
    is_secret = _is_secret(key.lstrip("+~-")) and value.lower() not in _NO_VALUES
    return f"{key}={MASK}" if sign and is_secret else masked(word)


def masked(text: str) -> str:
    """Return a text without the tokens, keys and passwords that are recognized by name or form."""
    text = _SECRETS.sub(MASK, text)
    text = _FOLLOWING.sub(lambda match: "".join(part or "" for part in match.groups()) + MASK, text)
    if not _WORD.search(text):
        return text
    return _ASSIGNED.sub(_masked_value, _masked_sections(text))


def _masked_sections(text: str) -> str:
    """Return a text with `MASK` for lists and mappings that are called secrets."""
    parts, end = [], 0
    for match in _OPENED.finditer(text):
        if match.start() >= end and _is_secret(match[1]):
            parts += [text[end : match.start(2)], MASK]
            end = _closing(text, match.start(2))
    return "".join([*parts, text[end:]])


def _closing(text: str, begin: int) -> int:
    """Return the end of what a bracket opens; it is that of the line if nothing closes it."""
    depth, line_end = 0, len(text)
    for match in _BRACKET.finditer(text, begin):
        if match[0] == "\n":
            line_end = min(line_end, match.start())
        else:
            depth += 1 if match[0] in "[{" else -1
            if depth == 0:
                return match.end()
    return line_end


def _masked_value(match: re.Match[str]) -> str:
    name, kind = match["name"], "bare" if match["bare"] else "quoted"
    is_value = match[kind].lower() not in _NO_VALUES and match[kind][0] not in "[<"
    is_assigned = match["gap"] is None or name.startswith("--")
    if not (is_value and is_assigned and _is_secret(name.lstrip("-"))):
        return match[0]
    begin, end = match.span(kind)
    text = match.string
    return f"{text[match.start() : begin]}{MASK}{text[end : match.end()]}"


@functools.lru_cache(10_000)
def _is_secret(key: str) -> bool:
    """Return whether a dotted key names a secret, or is within a section that does."""
    *sections, last = key.split(".")
    return not last.startswith("_") and any(map(_names_secret, (*sections, last)))


def _names_secret(name: str) -> bool:
    if not _WORD.search(name):
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    is_other = words.endswith("token") and words.split("_")[0] in _NO_SECRETS
    return bool(_NAME.search(words)) and not is_other
