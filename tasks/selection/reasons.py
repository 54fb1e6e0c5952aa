"""Why a row is not in a selection: the names that are counted, and what they mean."""

from __future__ import annotations

NOT_ANSWERED = "not_answered"
NOT_SCORED = "not_scored"
BEYOND_BEST_OF = "beyond_best_of"
PASS_RATE_LOW = "pass_rate_low"
PASS_RATE_HIGH = "pass_rate_high"
ZERO_VARIANCE = "zero_variance"
TRUNCATED = "truncated"
TOO_SHORT = "too_short"
TOO_LONG = "too_long"
NOT_MATCHING = "not_matching"
MATCHING = "matching"
WHERE = "where"
REWARD_LOW = "reward_low"
REWARD_HIGH = "reward_high"
DUPLICATE = "duplicate"
NEAR_DUPLICATE = "near_duplicate"
NOT_BEST = "not_best"
SINGLE_ANSWER = "single_answer"
TIE = "tie"
IDENTICAL_TEXTS = "identical_texts"
MARGIN = "margin"
LENGTH_RATIO = "length_ratio"
NOT_IN_PAIR = "not_in_pair"
NEITHER = "neither"
UNSUPPORTED_PROMPT = "unsupported_prompt"

MEANINGS = {
    UNSUPPORTED_PROMPT: "the prompt holds more than messages of a role and text",
    BEYOND_BEST_OF: "only the first answers of each prompt are looked at, and this is a later one",
    NOT_ANSWERED: "there is no answer: the prompt could not be asked, or answering failed",
    NOT_SCORED: "the reward could not be computed",
    PASS_RATE_LOW: "too few of the prompt's answers pass",
    PASS_RATE_HIGH: "too many of the prompt's answers pass",
    ZERO_VARIANCE: "all answers to the prompt have the same reward",
    TRUNCATED: "the answer was cut at the token limit",
    TOO_SHORT: "the answer has too few tokens",
    TOO_LONG: "the answer has too many tokens",
    NOT_MATCHING: "the answer does not hold the pattern that it must",
    MATCHING: "the answer holds the pattern that it must not",
    WHERE: "the condition does not hold",
    REWARD_LOW: "the reward is too low",
    REWARD_HIGH: "the reward is too high",
    DUPLICATE: "the same answer to the same prompt was looked at before",
    NEAR_DUPLICATE: "an answer of nearly the same words was looked at before",
    NOT_BEST: "other answers to the prompt are better",
    SINGLE_ANSWER: "there is no second answer to make a pair with",
    TIE: "the pair's rewards are equal",
    IDENTICAL_TEXTS: "the pair's texts are the same",
    MARGIN: "the pair's rewards are too close",
    LENGTH_RATIO: "one of the pair is too much longer than the other",
    NOT_IN_PAIR: "other answers to the prompt make the pair",
    NEITHER: "the reward is neither high enough for desirable nor low enough for undesirable",
}
"""Each reason in words, in the order in which rows are looked at: a row counts under the first that applies."""
