"""What the prompt column of a row may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmill.tasks.prompts.jsonable import BadValueError, to_jsonable
from rollmill.tasks.prompts.prompt import Content

PROMPT_COLUMNS = ("prompt", "messages", "input_ids")
_EXPECTED = "text, a list of chat messages or a list of token ids"
NO_PROMPT_COLUMN = "there is no column"


def find_prompt_column(values: Mapping[str, Any], chosen: str | None) -> str:
    """Return the column that holds the row's prompt: the chosen one, or the first usual one that is not null."""
    names = PROMPT_COLUMNS if chosen is None else (chosen,)
    there = [name for name in names if name in values]
    filled = [name for name in there if values[name] is not None]
    if filled:
        return filled[0]
    if there:
        raise BadValueError(f"{there[0]} is null")
    raise BadValueError(f"{NO_PROMPT_COLUMN} {' or '.join(names)}; the columns are {', '.join(values) or 'none'}")


def to_content(value: object, column: str) -> Content:
    """Return the prompt that a column's value stands for; raises BadValueError for anything that is not one."""
    plain = to_jsonable(value, column)
    if isinstance(plain, str):
        return _not_blank(plain, column)
    if not isinstance(plain, list):
        raise BadValueError(f"{column} is a {type(plain).__name__}, not {_EXPECTED}")
    if not plain:
        raise BadValueError(f"{column} is empty")
    if all(isinstance(item, dict) for item in plain):
        return _messages(plain, column)
    if all(isinstance(item, int) and not isinstance(item, bool) for item in plain):
        return _token_ids(plain, column)
    raise BadValueError(f"{column} is a list of {_kinds(plain)}, not {_EXPECTED}")


def _not_blank(text: str, column: str) -> str:
    if not text.strip():
        raise BadValueError(f"{column} is empty")
    return text


def _token_ids(ids: list[int], column: str) -> list[int]:
    wrong = next((token_id for token_id in ids if not 0 <= token_id < 2**31), None)
    if wrong is not None:
        raise BadValueError(f"{column} holds {wrong}, which is no token id")
    return ids


def _messages(messages: list[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """Return the messages without null fields, which Arrow adds where messages have different fields."""
    checked = [_message(message, f"{column}[{index}]") for index, message in enumerate(messages)]
    if not any(_has_text(message) for message in checked):
        raise BadValueError(f"{column} is empty: no message has any text")
    return checked


def _message(message: dict[str, Any], path: str) -> dict[str, Any]:
    filled = {key: value for key, value in message.items() if value is not None}
    role = filled.get("role")
    if not isinstance(role, str) or not role:
        raise BadValueError(f"{path} has no role")
    if isinstance(filled.get("content"), list):
        filled["content"] = [_text_part(part, f"{path}.content[{i}]") for i, part in enumerate(filled["content"])]
    elif not isinstance(filled.get("content", ""), str):
        raise BadValueError(f"{path}.content is a {type(filled['content']).__name__}, not text")
    return filled


def _text_part(part: object, path: str) -> dict[str, Any]:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise BadValueError(f"{path} is not a text part; rollmill's policies read text alone")
    return {key: value for key, value in part.items() if value is not None}


def _has_text(message: dict[str, Any]) -> bool:
    content = message.get("content", "")
    texts = [content] if isinstance(content, str) else [part["text"] for part in content]
    return any(text.strip() for text in texts)


def _kinds(items: list[Any]) -> str:
    return " and ".join(sorted({type(item).__name__ for item in items}))
