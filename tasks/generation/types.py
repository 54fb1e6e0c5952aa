"""The values that cross the generator's borders."""

from __future__ import annotations

from dataclasses import dataclass

FINISH_STOP, FINISH_LENGTH, FINISH_ERROR = "stop", "length", "error"

LOGPROB_MODE_PROCESSED = "processed"
"""Log-probabilities are those of the distribution that was sampled: after frequency penalty, temperature, top-k and
top-p, renormalised over what these keep. Greedy decoding is the limit of temperature to 0, where every chosen token
has probability 1 and log-probability 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one token is drawn, and for how long.

    max_tokens         most new tokens a response may have, at least 1
    temperature        logits are divided by it; 0 is greedy
    top_k              keep the k most likely tokens; 0 keeps all
    top_p              keep the smallest set of most likely tokens whose probability reaches it, in (0, 1]
    frequency_penalty  subtracted from a token's logit once for each time it occurs in the window
    rep_window         how many of the response's last tokens the window holds; 0 switches the penalty off
    kept_token_ids     also return, for each token, the ids that top-k and top-p left to draw from
    full_logprobs      also return, for each token, its log-probability over the whole vocabulary at temperature 1
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    frequency_penalty: float = 0.0
    rep_window: int = 64
    kept_token_ids: bool = False
    full_logprobs: bool = False

    def __post_init__(self) -> None:
        _check(self.max_tokens >= 1, "max_tokens must be at least 1", self.max_tokens)
        _check(self.temperature >= 0, "temperature must be at least 0", self.temperature)
        _check(self.top_k >= 0, "top_k must be at least 0", self.top_k)
        _check(0 < self.top_p <= 1, "top_p must be in (0, 1]", self.top_p)
        _check(-10 <= self.frequency_penalty <= 10, "frequency_penalty must be in [-10, 10]", self.frequency_penalty)
        _check(self.rep_window >= 0, "rep_window must be at least 0", self.rep_window)
        truncates = self.top_k > 0 or self.top_p < 1
        _check(truncates or not self.kept_token_ids, "kept_token_ids needs top_k > 0 or top_p < 1", "neither")


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One response: sampled ids, the log-probability of each, and why it ended (stop, length or error).

    `token_ids` includes the stop token when `finish_reason` is stop. When it is error, both lists are empty and
    `error` says why. `logprobs` is empty when none were asked for. `kept_token_ids` and `full_logprobs` have one entry
    a token where the sampling asked for them, else they are None.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: str
    error: str | None = None
    kept_token_ids: list[list[int]] | None = None
    full_logprobs: list[float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """One prompt to be answered once per seed; `key` is the caller's own and comes back with the answers."""

    key: str
    input_ids: list[int]
    seeds: list[int]
    sampling: SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """The answers to one `PromptGroup`, in the order of its seeds."""

    key: str
    completions: list[Completion]


def _check(holds: bool, bound: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{bound}, got {value}")
