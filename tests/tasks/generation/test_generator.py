"""What an in-process trainer gets from a batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from builders import PAD_ID, byte_tokenizer, tiny_model

from rollmill.tasks.generation.generator import RolloutGenerator
from rollmill.tasks.generation.scheduler import InferenceScheduler

TOKENIZER = byte_tokenizer()


def generator(**options: Any) -> RolloutGenerator:
    scheduler = InferenceScheduler(tiny_model("llama"), TOKENIZER, max_batch_size=6, max_seq_len=128)
    return RolloutGenerator(scheduler, TOKENIZER, **{"max_tokens": 10, "group_size": 3, "seed": 5, **options})


def test_a_rollout_has_the_shapes_and_types_that_it_promises() -> None:
    raw = generator(policy_version=4).generate({"prompt": ["one", "a longer one"], "answer": ["1", "2"]})
    groups, group_size, length = raw.responses.shape
    assert (groups, group_size) == (2, 3)
    assert raw.prompts.dtype == raw.responses.dtype == torch.int64
    assert raw.prompt_mask.dtype == raw.response_mask.dtype == torch.bool
    assert raw.logprobs_old.dtype == torch.float32
    assert raw.response_mask.shape == raw.logprobs_old.shape == (2, 3, length)
    assert raw.policy_version == 4
    assert raw.columns == {"answer": ["1", "2"]}
    assert raw.prompt_texts == ["<|user|>one\n<|assistant|>", "<|user|>a longer one\n<|assistant|>"]


def test_prompts_are_padded_on_the_left_and_answers_on_the_right_by_length() -> None:
    raw = generator().generate({"input_ids": [[PAD_ID, 5, 6], [7]]})
    assert raw.prompts.tolist() == [[PAD_ID, 5, 6], [PAD_ID, PAD_ID, 7]]
    assert raw.prompt_mask.tolist() == [[True, True, True], [False, False, True]]
    lengths = raw.response_mask.sum(-1)
    assert (lengths > 0).all()
    places = torch.arange(raw.response_mask.shape[-1])
    assert torch.equal(raw.response_mask, places < lengths[..., None])


def test_a_padded_tensor_with_a_mask_asks_the_same_as_ragged_ids() -> None:
    padded = {
        "prompts": torch.tensor([[0, 0, 7, 8], [9, 10, 11, 12]]),
        "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
        "prompt_ids": ["a", "b"],
    }
    ragged = {"input_ids": [[7, 8], [9, 10, 11, 12]], "prompt_ids": ["a", "b"]}
    first, second = generator().generate(padded), generator().generate(ragged)
    assert torch.equal(first.responses, second.responses)
    assert torch.equal(first.logprobs_old, second.logprobs_old)


def test_messages_and_strings_take_the_same_template() -> None:
    names = {"prompt_ids": ["a"]}
    said = generator().generate({"messages": [[{"role": "user", "content": "hi"}]], **names})
    plain = generator().generate({"prompt": ["hi"], **names})
    assert torch.equal(said.responses, plain.responses)
    assert said.prompt_texts == plain.prompt_texts


def test_answers_follow_the_prompt_and_not_its_place_in_the_batch() -> None:
    forwards = generator().generate({"prompt": ["x", "yy", "zzz"], "prompt_ids": ["x", "y", "z"]})
    backwards = generator().generate({"prompt": ["zzz", "yy", "x"], "prompt_ids": ["z", "y", "x"]})
    assert forwards.response_texts == backwards.response_texts[::-1]


def test_the_answers_of_a_group_differ_and_a_fresh_seed_gives_others() -> None:
    answers = generator(group_size=8).generate({"prompt": ["x"], "prompt_ids": ["x"]})
    assert len(set(answers.response_texts[0])) > 1
    free = generator(seed=None)
    batch = {"prompt": ["x"], "prompt_ids": ["x"]}
    assert free.generate(batch).response_texts != free.generate(batch).response_texts


def test_a_prompt_that_cannot_be_answered_has_empty_error_rows_beside_good_ones() -> None:
    raw = generator().generate({"input_ids": [[1, 2], [3] * 128, []]})
    assert raw.finish_reasons[1] == raw.finish_reasons[2] == ["error"] * 3
    assert "error" not in raw.finish_reasons[0]
    assert not raw.response_mask[1:].any()
    assert raw.response_mask[0].any(-1).all()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"text": ["x"]}, "needs one of input_ids, prompts, messages, prompt; this one has text"),
        ({"prompt": ["x", "y"], "answer": ["1"]}, r"batch\['answer'\] has 1 entries for 2 prompts"),
    ],
)
def test_a_batch_that_cannot_be_read_says_what_is_missing(batch: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generator().generate(batch)


def test_a_group_has_at_least_one_answer() -> None:
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        generator(group_size=0)
