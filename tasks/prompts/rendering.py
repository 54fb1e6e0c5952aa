"""From a prompt to the token ids that the policy reads."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.beginning import BeginningTokens
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.conversation import user_message, with_system_prompt
from rollmill.tasks.prompts.prompt import Prompt, to_json

_TEMPLATE_ERRORS = (TemplateError, ValueError, TypeError, KeyError, AttributeError)
"""What a template, which is a program of the model's author, raises when a conversation does not suit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt as the policy sees it; `text` is the same for people, special tokens included.

    When `error` is set it says why the prompt cannot be asked, and `input_ids` is empty.
    """

    prompt_id: str
    text: str
    input_ids: list[int]
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderingFingerprint:
    """What decides the token ids of a given prompt: two sha256 digests in hexadecimal."""

    tokenizer: str
    template: str


class PromptRenderer:
    """Renders prompts with one tokenizer and one configuration."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, config: PromptsConfig, max_prompt_tokens: int | None = None
    ) -> None:
        """Prepare; the smaller of `max_prompt_tokens` and the config's own is the limit, in tokens.

        Raises PromptSourceError when the config asks for a system prompt that the tokenizer's template cannot take.
        """
        limits = [limit for limit in (max_prompt_tokens, config.max_prompt_tokens) if limit is not None]
        self._max_prompt_tokens = min(limits, default=None)
        self._tokenizer = tokenizer
        self._system_prompt = config.system_prompt
        self._uses_template = config.template == "auto" and tokenizer.chat_template is not None
        self._mode = config.template
        self._beginning = BeginningTokens(tokenizer)
        if self._system_prompt is not None:
            self._check_system_prompt()

    def render(self, prompt: Prompt) -> RenderedPrompt:
        """Return the prompt's text and token ids, with exactly one beginning-of-sequence token if the policy has one.

        A string or chat messages go through the chat template, which opens the assistant's turn, or goes on with it
        when the last message is the assistant's; token ids pass as they are. What cannot be rendered, or has no or
        too many tokens, comes back with an error.
        """
        if prompt.error is not None:
            return _failed(prompt, prompt.error)
        try:
            text, token_ids = self._text_and_ids(prompt)
            self._check_length(token_ids)
        except _TEMPLATE_ERRORS as error:
            return _failed(prompt, _one_line(error))
        return RenderedPrompt(prompt_id=prompt.prompt_id, text=text, input_ids=token_ids)

    @property
    def fingerprint(self) -> RenderingFingerprint:
        """Return digests of the tokenizer, and of the template with the system prompt and the mode."""
        template = [self._mode, self._tokenizer.chat_template if self._uses_template else None, self._system_prompt]
        return RenderingFingerprint(
            tokenizer=tokenizer_fingerprint(self._tokenizer), template=_sha256(to_json(template))
        )

    def _text_and_ids(self, prompt: Prompt) -> tuple[str, list[int]]:
        content = prompt.content
        if not content:
            raise ValueError("the prompt has no tokens")
        if isinstance(content, str):
            messages = [user_message(content)]
            return self._beginning.encode(self._templated(messages) if self._uses_template else content)
        token_ids = [item for item in content if isinstance(item, int)]
        if token_ids:
            self._check_vocabulary(token_ids)
            return str(self._tokenizer.decode(token_ids, skip_special_tokens=False)), token_ids
        return self._beginning.encode(self._templated([item for item in content if isinstance(item, dict)]))

    def _templated(self, messages: list[dict[str, Any]]) -> str:
        if not self._uses_template:
            raise ValueError("chat messages need a tokenizer with a chat template, and template: auto")
        messages = with_system_prompt(messages, self._system_prompt)
        goes_on = messages[-1]["role"] == "assistant"
        return str(
            self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
            )
        )

    def _check_vocabulary(self, token_ids: list[int]) -> None:
        if max(token_ids) >= len(self._tokenizer):
            raise ValueError(f"token id {max(token_ids)} is outside the tokenizer's {len(self._tokenizer)}")

    def _check_length(self, token_ids: list[int]) -> None:
        if not token_ids:
            raise ValueError("the prompt has no tokens")
        if self._max_prompt_tokens is not None and len(token_ids) > self._max_prompt_tokens:
            raise ValueError(
                f"the prompt has {len(token_ids)} tokens, more than the limit of {self._max_prompt_tokens}"
            )

    def _check_system_prompt(self) -> None:
        """Refuse a system prompt that would not reach the policy, before any prompt is rendered."""
        if not self._uses_template:
            raise PromptSourceError("prompts.system_prompt is set, but the policy's tokenizer has no chat template")
        try:
            text = self._templated([user_message("?")])
        except _TEMPLATE_ERRORS as error:
            raise PromptSourceError(
                f"prompts.system_prompt is set, but the policy's chat template refuses it: {_one_line(error)}"
            ) from error
        if (self._system_prompt or "").strip() not in text:
            raise PromptSourceError("prompts.system_prompt is set, but the policy's chat template leaves it out")


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the sha256 of the tokenizer's own definition, without the truncation and padding of its last call."""
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        definition = json.loads(tokenizer.backend_tokenizer.to_str())
        definition.pop("truncation", None)
        definition.pop("padding", None)
    else:
        definition = [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    return _sha256(to_json([definition, tokenizer.bos_token_id, tokenizer.eos_token_id]))


def _failed(prompt: Prompt, reason: str) -> RenderedPrompt:
    return RenderedPrompt(prompt_id=prompt.prompt_id, text="", input_ids=[], error=reason)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
