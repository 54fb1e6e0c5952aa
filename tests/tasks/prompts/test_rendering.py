"""Prompts reach the policy as its own tokenizer and template would have it, with exactly one BOS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt
from rollmill.tasks.prompts.rendering import PromptRenderer, RenderedPrompt

BOS, EOS, HEAD = 256, 257, 259
TURNS = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + TURNS
SKIPS_SYSTEM = (
    "{% for message in messages if message['role'] != 'system' %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = [{"role": "user", "content": "hi"}]


def tokenizer(template: str | None = None, before: str = "", after: str = "") -> PreTrainedTokenizerFast:
    """Return a byte tokenizer that puts special tokens `before` and `after` plain text, such as "<s>"."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>", "<pad>", "[head]"])
    ids = {"<s>": BOS, "</s>": EOS, "[head]": HEAD}
    if before or after:
        pattern = " ".join(part for part in (before, "$A", after) if part)
        used = [(name, index) for name, index in ids.items() if name in pattern.split()]
        backend.post_processor = processors.TemplateProcessing(single=pattern, special_tokens=used)
    fast = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    fast.chat_template = template
    return fast


def render(
    content: Any, tokenizer: PreTrainedTokenizerFast, max_prompt_tokens: int | None = None, **fields: Any
) -> RenderedPrompt:
    renderer = PromptRenderer(tokenizer, PromptsConfig(source="a.jsonl", **fields), max_prompt_tokens)
    return renderer.render(Prompt(prompt_id="p", content=content))


@pytest.mark.parametrize("content", ["hi", CHAT], ids=["text", "chat"])
@pytest.mark.parametrize("before", ["", "<s>"], ids=["tokenizer adds none", "tokenizer adds one"])
@pytest.mark.parametrize("start", ["", "{{ bos_token }}"], ids=["template writes none", "template writes one"])
def test_a_policy_that_takes_a_bos_gets_exactly_one(content: Any, before: str, start: str) -> None:
    rendered = render(content, tokenizer(start + TURNS, before))
    takes_one = bool(before or start)
    assert rendered.input_ids.count(BOS) == takes_one
    assert rendered.text == "<s>" * takes_one + "<|user|>hi</s><|assistant|>"
    assert (rendered.input_ids[0] == BOS) == takes_one


@pytest.mark.parametrize("before", ["", "<s>"])
@pytest.mark.parametrize("given_bos", [0, 1, 2, 3])
def test_raw_text_gets_one_bos_from_a_tokenizer_that_adds_it_and_keeps_at_most_one(before: str, given_bos: int) -> None:
    rendered = render("<s>" * given_bos + "hi", tokenizer(TURNS, before), template="raw")
    expected = min(1, given_bos + bool(before))
    assert rendered.input_ids.count(BOS) == expected
    assert rendered.text == "<s>" * expected + "hi"


def test_every_token_that_a_tokenizer_puts_before_text_is_there_once() -> None:
    with_head = tokenizer(TURNS, before="[head] <s>")
    assert render("hi", with_head, template="raw").input_ids == with_head("hi").input_ids
    assert render("[head]<s>hi", with_head, template="raw").input_ids == with_head("hi").input_ids


def test_what_a_tokenizer_adds_after_text_does_not_end_the_prompt() -> None:
    assert render("hi", tokenizer(before="<s>", after="</s>")).text == "<s>hi"


@pytest.mark.parametrize("chat", [CHAT, [{"role": "system", "content": "s"}, *CHAT], [*CHAT, *CHAT]])
def test_chats_have_the_ids_that_the_tokenizer_itself_gives(chat: list[dict[str, str]]) -> None:
    own = tokenizer("{{ bos_token }}" + TURNS, before="<s>")
    expected = own.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert render(chat, own).input_ids == expected


@settings(max_examples=50, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_the_text_shown_is_the_text_of_the_ids(text: str) -> None:
    for own in (tokenizer(before="<s>"), tokenizer("{{ bos_token }}" + TURNS)):
        rendered = render(text, own)
        assert own(rendered.text, add_special_tokens=False).input_ids == rendered.input_ids
        assert own.decode(rendered.input_ids, skip_special_tokens=False) == rendered.text


def test_the_system_prompt_comes_first_and_a_rows_own_wins() -> None:
    own = tokenizer(TURNS)
    assert render("hi", own, system_prompt="Be brief.").text == "<|system|>Be brief.</s><|user|>hi</s><|assistant|>"
    chat = [{"role": "system", "content": "Shout."}, *CHAT]
    assert render(chat, own, system_prompt="Be brief.").text == "<|system|>Shout.</s><|user|>hi</s><|assistant|>"


@pytest.mark.parametrize(
    ("template", "reason"), [(None, "has no chat template"), (NO_SYSTEM, "no system role"), (SKIPS_SYSTEM, "leaves it")]
)
def test_a_system_prompt_that_cannot_reach_the_policy_is_refused(template: str | None, reason: str) -> None:
    with pytest.raises(PromptSourceError, match=reason):
        PromptRenderer(tokenizer(template), PromptsConfig(source="a.jsonl", system_prompt="Be brief."))


def test_a_chat_that_ends_with_the_assistant_is_continued() -> None:
    chat = [*CHAT, {"role": "assistant", "content": "The answer is "}]
    assert render(chat, tokenizer(TURNS)).text == "<|user|>hi</s><|assistant|>The answer is "


def test_token_ids_pass_as_they_are() -> None:
    own = tokenizer("{{ bos_token }}" + TURNS, before="<s>")
    for ids in ([5], [BOS, BOS, 5], [EOS, 5]):
        rendered = render(ids, own, system_prompt="Be brief.")
        assert rendered.input_ids == ids
        assert rendered.text == own.decode(ids)


def test_raw_mode_leaves_text_alone_though_there_is_a_template() -> None:
    assert render("hi", tokenizer(TURNS), template="raw").text == "hi"
    assert render("hi", tokenizer(None)).text == "hi"


@pytest.mark.parametrize(
    ("content", "fields", "reason"),
    [
        (CHAT, {"template": "raw"}, "chat messages need a tokenizer with a chat template"),
        ([0, 260], {}, "token id 260 is outside the tokenizer's 260"),
        ("four", {"template": "raw", "max_prompt_tokens": 3}, "the prompt has 4 tokens, more than the limit of 3"),
        ([{"role": "system", "content": "s"}], {}, "no system role"),
        ("", {"template": "raw"}, "the prompt has no tokens"),
    ],
)
def test_what_cannot_be_rendered_comes_back_with_an_error(content: Any, fields: dict[str, Any], reason: str) -> None:
    rendered = render(content, tokenizer(NO_SYSTEM), **fields)
    assert rendered.prompt_id == "p"
    assert rendered.input_ids == []
    assert reason in (rendered.error or "")


def test_the_error_of_a_row_that_could_not_be_read_is_kept() -> None:
    renderer = PromptRenderer(tokenizer(), PromptsConfig(source="a.jsonl"))
    rendered = renderer.render(Prompt(prompt_id="p", content=None, error="line 2: prompt is empty"))
    assert rendered == RenderedPrompt(prompt_id="p", text="", input_ids=[], error="line 2: prompt is empty")


def test_the_smaller_limit_holds_and_the_limit_itself_fits() -> None:
    assert render("four", tokenizer(), max_prompt_tokens=4, template="raw").error is None
    for limits in ({"max_prompt_tokens": 3}, {"max_prompt_tokens": 9}):
        smaller = 3 if limits["max_prompt_tokens"] == 9 else 9
        renderer = PromptRenderer(tokenizer(), PromptsConfig(source="a.jsonl", **limits), smaller)
        assert "limit of 3" in (renderer.render(Prompt(prompt_id="p", content="four")).error or "")


def fingerprints(own: PreTrainedTokenizerFast, **fields: Any) -> tuple[str, str]:
    fingerprint = PromptRenderer(own, PromptsConfig(source="a.jsonl", **fields)).fingerprint
    return fingerprint.tokenizer, fingerprint.template


def test_the_fingerprints_change_with_what_changes_the_ids_and_with_nothing_else() -> None:
    base = fingerprints(tokenizer(TURNS))
    used = tokenizer(TURNS)
    used(["a", "bcd"], truncation=True, max_length=2, padding=True)
    assert fingerprints(used, limit=3, max_prompt_tokens=5) == base
    assert fingerprints(tokenizer(SKIPS_SYSTEM))[0] == base[0]
    changed = [
        fingerprints(tokenizer(SKIPS_SYSTEM))[1],
        fingerprints(tokenizer(TURNS), system_prompt="Be brief.")[1],
        fingerprints(tokenizer(TURNS), template="raw")[1],
    ]
    assert len({base[1], *changed}) == 4
    assert fingerprints(tokenizer(TURNS, before="<s>"))[0] != base[0]


def test_the_fingerprints_are_the_same_in_another_process(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    program = (
        "import sys, json; from transformers import AutoTokenizer\n"
        "from rollmill.tasks.prompts.config import PromptsConfig\n"
        "from rollmill.tasks.prompts.rendering import PromptRenderer\n"
        "renderer = PromptRenderer(AutoTokenizer.from_pretrained(sys.argv[1]), PromptsConfig(source='a.jsonl'))\n"
        "print(json.dumps([renderer.fingerprint.tokenizer, renderer.fingerprint.template]))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    there = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert tuple(json.loads(there)) == fingerprints(AutoTokenizer.from_pretrained(tmp_path))
