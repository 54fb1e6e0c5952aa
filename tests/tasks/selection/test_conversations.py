from __future__ import annotations

from typing import Any

import pytest
from selection_builders import rewarded

from rollmill.tasks.selection.conversations import (
    Conversation,
    conversation_of,
    dpo_messages,
    expressible,
    kto_messages,
    sft_messages,
)
from rollmill.tasks.selection.labels import kto
from rollmill.tasks.selection.pairs import dpo_pairs


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
CHAT: list[dict[str, Any]] = [user("1 + 1"), assistant("2"), user("and 2 + 2?")]


@pytest.mark.parametrize(
    ("content", "system_prompt", "messages", "begun"),
    [
        ("2 + 2", None, [user("2 + 2")], ""),
        ("2 + 2", "Be brief.", [SYSTEM, user("2 + 2")], ""),
        (CHAT, None, CHAT, ""),
        (CHAT, "Be brief.", [SYSTEM, *CHAT], ""),
        ([SYSTEM, user("2 + 2")], "Be long.", [SYSTEM, user("2 + 2")], ""),
        ([user("2 + 2"), assistant("It is ")], None, [user("2 + 2")], "It is "),
        ([{"role": "user", "content": [{"type": "text", "text": "2 "}, {"type": "text", "text": "+ 2"}]}], None,
         [user("2 + 2")], ""),
        ([1, 2, 3], "Be brief.", [user("<s>two plus two")], ""),
        (None, "Be brief.", [user("<s>two plus two")], ""),
    ],
)  # fmt: skip
def test_a_prompt_becomes_the_messages_that_it_was(
    content: Any, system_prompt: str | None, messages: list[dict[str, str]], begun: str
) -> None:
    assert conversation_of(content, "<s>two plus two", system_prompt) == Conversation(messages, begun)


@pytest.mark.parametrize(
    "content",
    [
        [user("2 + 2"), {"role": "assistant", "content": "", "tool_calls": [{"name": "add"}]}],
        [{"role": "tool", "content": "4", "tool_call_id": "1"}, user("so?")],
        [assistant("It is ")],
    ],
)
def test_what_role_and_text_cannot_express_is_none(content: Any) -> None:
    assert conversation_of(content, "", None) is None


CONVERSATIONS = {"p0": Conversation([SYSTEM, user("2 + 2")], "It is "), "p1": None}


def test_answers_to_prompts_that_messages_cannot_express_are_counted() -> None:
    found = expressible(rewarded([1.0, 0.0], [1.0], [1.0]), CONVERSATIONS)
    assert found.table["prompt_id"].to_pylist() == ["p0", "p0", "p2"]
    assert dict(found.dropped) == {"unsupported_prompt": 1}


def test_records_have_the_columns_that_trl_expects() -> None:
    table = expressible(rewarded([1.0, 0.0], [1.0], [1.0]), CONVERSATIONS).table
    told = assistant("It is answer 0.0")
    assert sft_messages(table, CONVERSATIONS)["messages"].to_pylist() == [
        [SYSTEM, user("2 + 2"), told],
        [SYSTEM, user("2 + 2"), assistant("It is answer 0.1")],
        [user("question 2"), assistant("answer 2.0")],
    ]
    (pair,) = dpo_messages(dpo_pairs(table).table, CONVERSATIONS).to_pylist()
    assert (pair["prompt"], pair["chosen"]) == ([SYSTEM, user("2 + 2")], [told])
    assert pair["rejected"] == [assistant("It is answer 0.1")]
    labelled = kto_messages(kto(table).table, CONVERSATIONS).to_pylist()
    assert [(row["completion"], row["label"]) for row in labelled[:2]] == [
        ([told], True),
        ([assistant("It is answer 0.1")], False),
    ]
    assert labelled[2]["prompt"] == [user("question 2")]
