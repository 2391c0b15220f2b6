"""The page as HTML, from its templates. No TensorFlow."""

from __future__ import annotations

import importlib.resources
import json
import secrets
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from trainer import __version__
from trainer.cli.page.payload import finite_only

_TEMPLATES = importlib.resources.files(__package__).joinpath("templates")
_POLICY = "default-src 'none'; style-src 'nonce-{0}'; script-src 'nonce-{0}'; img-src data:"
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
"""What could end the script element that holds JSON, or begin another; only texts have it."""


def live_page(folder: str) -> tuple[str, str]:
    """Return the page that asks the server for its data, and its Content-Security-Policy."""
    nonce = secrets.token_urlsafe(16)
    policy = f"{_POLICY.format(nonce)}; connect-src 'self'; base-uri 'none'; form-action 'none'"
    return _page(folder, nonce, policy, None), f"{policy}; frame-ancestors 'none'"


def report_page(title: str, data: Mapping[str, Any]) -> str:
    """Return the page that holds its data and needs no network.

    Args:
        title: its title.
        data: `folder`, `now`, `runs`, and by id `series` and `details`.
    """
    nonce = secrets.token_urlsafe(16)
    return _page(title, nonce, f"{_POLICY.format(nonce)}; base-uri 'none'", _json(data))


def _page(title: str, nonce: str, policy: str, data: Markup | None) -> str:
    names = sorted(file.name for file in _TEMPLATES.iterdir() if file.name.endswith(".js"))
    # Whoever changes a template while a server runs sees it at the next load.
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text("page.html")).render(
        title=title,
        nonce=nonce,
        policy=policy,
        is_live=data is None,
        style=Markup(_text("page.css")),
        scripts=[Markup(_text(name)) for name in names],
        data=data,
        version=__version__,
    )


def _text(name: str) -> str:
    return _TEMPLATES.joinpath(name).read_text(encoding="utf-8")


def _json(data: Mapping[str, Any]) -> Markup:
    """Return data as JSON for a script element: all of it ASCII, without the signs of HTML."""
    text = json.dumps(finite_only(data), separators=(",", ":"), allow_nan=False)
    return Markup(text.translate(_UNSAFE))
