"""Answers of thousands of tokens: what is written first must still be attended to exactly at the end."""

from __future__ import annotations

import pytest
import torch
from builders import VOCAB_SIZE, byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from rollmill.tasks.generation.scheduler import InferenceScheduler

LENGTH = 4096


@pytest.mark.slow
def test_log_probabilities_stay_exact_over_four_thousand_tokens() -> None:
    torch.manual_seed(0)
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    sizes = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, max_position_embeddings=LENGTH + 64)).eval()
    model.generation_config.eos_token_id = None
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    prompts = [[1, 2, 3], list(range(40))]
    completions = InferenceScheduler(model, tokenizer).run_batch(
        [prompt for prompt in prompts for _ in range(2)], max_tokens=LENGTH, temperature=0.8, seeds=[1, 2, 3, 4]
    )
    for prompt, completion in zip([prompt for prompt in prompts for _ in range(2)], completions, strict=True):
        assert len(completion.token_ids) == LENGTH
        ids = torch.tensor([prompt + completion.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(prompt) - 1 : -1].double() / 0.8
        expected = logits.log_softmax(-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
        difference = (torch.tensor(completion.logprobs, dtype=torch.float64) - expected).abs()
        assert difference.max() < 1e-4
        assert difference[-256:].mean() < 2 * difference[:256].mean() + 1e-6
