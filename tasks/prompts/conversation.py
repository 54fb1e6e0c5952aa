"""The messages that a prompt stands for."""

from __future__ import annotations

from typing import Any

_SYSTEM_ROLES = ("system", "developer")


def user_message(text: str) -> dict[str, Any]:
    """Return the message that a prompt of plain text stands for."""
    return {"role": "user", "content": text}


def with_system_prompt(messages: list[dict[str, Any]], system_prompt: str | None) -> list[dict[str, Any]]:
    """Return the messages after `system_prompt`, unless that is None or they bring one of their own."""
    if system_prompt is None or any(message["role"] in _SYSTEM_ROLES for message in messages):
        return messages
    return [{"role": "system", "content": system_prompt}, *messages]
