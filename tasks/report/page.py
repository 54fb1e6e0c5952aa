"""The page: one HTML file with everything in it, that runs no code but its own and asks no server for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

_FOLDER = files("rollmill.tasks.report")
_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}
"""What could end a script element, or be read as markup or a line's end within one; JSON has another way to say it."""


def render(values: Mapping[str, Any]) -> str:
    """Return the page of these values of the template."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["json"] = embedded_json
    script = _part("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment.from_string(_part("page.html"))
    return template.render(
        values, style=Markup(_part("page.css")), script=Markup(script), script_digest=f"sha256-{digest}"
    )


def embedded_json(value: Any) -> Markup:
    """Return JSON that stays data wherever it stands within a script element, whatever texts are in it."""
    return Markup(json.dumps(value, ensure_ascii=False, allow_nan=False).translate(_ESCAPED))


def _part(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
