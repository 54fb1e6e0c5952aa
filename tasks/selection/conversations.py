"""Prompts and answers as chat messages, in the columns that TRL's trainers read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from rollmill.tasks.prompts.conversation import user_message, with_system_prompt
from rollmill.tasks.prompts.prompt import Content
from rollmill.tasks.selection.reasons import UNSUPPORTED_PROMPT
from rollmill.tasks.selection.selected import Selected, keep

MESSAGES = pa.list_(pa.struct([pa.field("role", pa.string()), pa.field("content", pa.string())]))
"""A list of messages, each a role and a text."""

Message = dict[str, str]
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages before an answer, and the beginning of the answer that the prompt itself gave, mostly empty."""

    prompt: Sequence[Message]
    begun: str = ""

    def completion(self, answer: str) -> list[Message]:
        """Return the answer as the assistant's message."""
        return [{"role": _ASSISTANT, "content": self.begun + answer}]


Conversations = Mapping[str, Conversation | None]
"""By prompt_id; None for a prompt that messages of a role and text cannot express. A prompt that is not there is one
message of the user's, its `prompt_text`."""


def conversation_of(content: Content, prompt_text: str, system_prompt: str | None = None) -> Conversation | None:
    """Return a prompt, as it was put to the policy, as messages of a role and text.

    Text is the user's message, after `system_prompt` where there is one; chat messages stay as they are, and get the
    system prompt when they have none. Where token ids were given, or nothing is known, the user's message is
    `prompt_text`, special tokens and all. A last message of the assistant's is the beginning of the answer. None when
    a message holds more than a role and text, such as a tool call, or there is none before the answer.
    """
    if content is None or (isinstance(content, list) and isinstance(content[0], int)):
        return Conversation([user_message(prompt_text)])
    given = [user_message(content)] if isinstance(content, str) else [one for one in content if isinstance(one, dict)]
    plain = [_plain(message) for message in with_system_prompt(given, system_prompt)]
    messages = [message for message in plain if message is not None]
    begun = messages.pop()["content"] if messages and messages[-1]["role"] == _ASSISTANT else ""
    return Conversation(messages, begun) if messages and None not in plain else None


def expressible(table: pa.Table, conversations: Conversations) -> Selected:
    """Keep the answers to prompts that messages of a role and text can express."""
    unsupported = {prompt_id for prompt_id, conversation in conversations.items() if conversation is None}
    if not unsupported:
        return Selected.all_of(table)
    return keep(table, [prompt_id not in unsupported for prompt_id in _ids(table)], UNSUPPORTED_PROMPT)


def sft_messages(table: pa.Table, conversations: Conversations) -> pa.Table:
    """Return the answers with a column `messages`: the prompt's and the answer.

    Here and below, every prompt is expressible: `expressible` drops the others.
    """
    found = _found(table, conversations)
    answers = zip(found, table["response_text"].to_pylist(), strict=True)
    return _with(table, messages=[[*one.prompt, *one.completion(answer)] for one, answer in answers])


def kto_messages(table: pa.Table, conversations: Conversations) -> pa.Table:
    """Return the answers with the columns `prompt` and `completion`, lists of messages."""
    found = _found(table, conversations)
    return _with(
        table,
        prompt=[list(one.prompt) for one in found],
        completion=_completions(found, table["response_text"]),
    )


def dpo_messages(pairs: pa.Table, conversations: Conversations) -> pa.Table:
    """Return the pairs of `dpo_pairs` with the columns `prompt`, `chosen` and `rejected`, lists of messages."""
    found = _found(pairs, conversations)
    return _with(
        pairs,
        prompt=[list(one.prompt) for one in found],
        chosen=_completions(found, pairs["chosen_response_text"]),
        rejected=_completions(found, pairs["rejected_response_text"]),
    )


def _found(table: pa.Table, conversations: Conversations) -> list[Conversation]:
    texts = table["prompt_text"].to_pylist()
    found = [
        conversations.get(prompt_id, Conversation([user_message(text)]))
        for prompt_id, text in zip(_ids(table), texts, strict=True)
    ]
    return [one for one in found if one is not None]


def _completions(found: Sequence[Conversation], answers: pa.ChunkedArray) -> list[list[Message]]:
    return [one.completion(answer) for one, answer in zip(found, answers.to_pylist(), strict=True)]


def _with(table: pa.Table, **columns: list[list[Message]]) -> pa.Table:
    for name, values in columns.items():
        table = table.append_column(pa.field(name, MESSAGES), pa.array(values, MESSAGES))
    return table


def _ids(table: pa.Table) -> list[str]:
    ids: list[str] = table["prompt_id"].to_pylist()
    return ids


def _plain(message: Mapping[str, Any]) -> Message | None:
    """Return the message's role and text, its text parts joined; None when it holds anything else."""
    if message.keys() - {"role", "content"}:
        return None
    content = message.get("content", "")
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return {"role": message["role"], "content": text}
