"""The special tokens that a policy's input begins with, neither missing nor doubled."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase


class BeginningTokens:
    """Knows what a tokenizer puts before plain text: a beginning-of-sequence token for most, nothing for some.

    Text that already begins with it, as most chat templates write it, gets no second one; a text that lacks it gets
    it; one that repeats it keeps one. A tokenizer that puts nothing before plain text adds nothing here either, for
    its policy was not trained with it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._token_ids = _added_before_text(tokenizer)
        self._text = str(tokenizer.decode(self._token_ids, skip_special_tokens=False)) if self._token_ids else ""

    def encode(self, text: str) -> tuple[str, list[int]]:
        """Return the text with its beginning put right, and its token ids."""
        token_ids = _encode(self._tokenizer, text, special=False)
        repeats = self._leading_bos(token_ids)
        if repeats > 1:
            return text.replace(str(self._tokenizer.bos_token), "", repeats - 1), token_ids[repeats - 1 :]
        if repeats == 1 or token_ids[: len(self._token_ids)] == self._token_ids:
            return text, token_ids
        return self._text + text, self._token_ids + token_ids

    def _leading_bos(self, token_ids: list[int]) -> int:
        bos = self._tokenizer.bos_token_id
        return next((index for index, token_id in enumerate(token_ids) if token_id != bos), len(token_ids))


def _added_before_text(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return the ids before those of a plain text; what some tokenizers add after it would end the prompt."""
    plain = _encode(tokenizer, "a", special=False)
    full = _encode(tokenizer, "a", special=True)
    starts = (start for start in range(len(full)) if plain and full[start : start + len(plain)] == plain)
    return full[: next(starts, 0)]


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, special: bool) -> list[int]:
    # verbose=False: a prompt's length is judged against the policy, not against what the tokenizer's file says.
    encoded = tokenizer(text, add_special_tokens=special, return_attention_mask=False, verbose=False)
    return [int(token_id) for token_id in encoded["input_ids"]]
