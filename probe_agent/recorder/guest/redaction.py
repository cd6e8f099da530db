"""Redaction of secrets in command lines and environments, before they are shown or written.

A secret is recognised by its name: KEY, TOKEN, SECRET or PASSW anywhere in it. A short number under KEY or TOKEN is a
size (`--max-tokens 4096`), and a tokenizer is not a secret. Runs in the target once, when it writes its identity, and
beside it whenever a process is shown: a few microseconds per word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

__all__ = ["REDACTED", "redacted_command", "redacted_text", "redacted_value"]

REDACTED = "***"
_NAME = re.compile(r"key|token(?!iz)|secret|passw", re.I)
_SURELY = re.compile(r"secret|passw", re.I)
_SIZE = re.compile(r"\d{1,7}|true|false|none|null", re.I)
_OPTION = re.compile(r"-{1,2}[\w.-]+")
_PAIR = re.compile(r"([-+~@]*[\w.-]+)=(.*)", re.S)
#: Everything before the last @ in the authority of `scheme://user:password@host`.
_CREDENTIALS = re.compile(r"(\b[a-z][a-z\d+.-]{0,30}://)[^\s/?#@'\"]+(?:@[^\s/?#@'\"]+)*@", re.I)
_BEARER = re.compile(r"(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.I)
#: `name = `, `"name": ` and `--name ` in a text. No part of a word is scanned twice, however long the text is.
_HEAD = re.compile(r"(?<![\w.-])(?P<name>[\w.-]+)(?:(?P<assigned>[\"']?\s*[=:]+\s*)|\s+(?![\s-]))")
_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s,;&\"']+")


def redacted_command(words: Sequence[str]) -> list[str]:
    """Return a command line without secrets."""
    return list(_redacted_words(words))


def redacted_value(name: str, value: str) -> str:
    """Return the value of an environment variable, or of anything else with a name, redacted if it is a secret."""
    return REDACTED if value and _is_secret(name, value) else redacted_text(value)


def redacted_text(text: str) -> str:
    """Return a text (code, a URL, a shell command) without the secrets in it."""
    text = _CREDENTIALS.sub(rf"\1{REDACTED}@", text)
    shown, at = [], 0
    while head := _HEAD.search(text, at):
        shown.append(text[at : head.end()])
        at = head.end()
        is_named = head["assigned"] is not None or head["name"].startswith("-")
        value = _VALUE.match(text, at) if is_named and _NAME.search(head["name"]) else None
        if value is not None and _is_secret(head["name"], value.group().strip("\"'")):
            shown.append(REDACTED)
            at = value.end()
    return _BEARER.sub(rf"\1{REDACTED}", "".join(shown) + text[at:])


def _redacted_words(words: Sequence[str]) -> Iterator[str]:
    option = ""
    for word in words:
        if option and not word.startswith("--"):
            yield redacted_value(option, word)
            option = ""
            continue
        pair = _PAIR.fullmatch(word)
        yield f"{pair[1]}={redacted_value(pair[1], pair[2])}" if pair else redacted_text(word)
        option = word if _OPTION.fullmatch(word) and _NAME.search(word) else ""


def _is_secret(name: str, value: str) -> bool:
    if not _NAME.search(name):
        return False
    return bool(_SURELY.search(name)) or not _SIZE.fullmatch(value)
