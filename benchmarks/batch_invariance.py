"""How often an answer changes when only the batch around it does (make bench-invariance).

The same prompts are answered with several batch sizes; an answer counts as changed when any of its token ids differs
from the first batch size's, and as drifted when only some log-probability does. Then the log-probabilities of the first
batch size are compared with a teacher-forced recompute in float32, which is what a trainer would see.
"""

from __future__ import annotations

import argparse

import torch
from transformers import PreTrainedTokenizerBase

from rollmill.tasks.generation.audit import StoredAnswer, audit
from rollmill.tasks.generation.packed_weights import pack_weights
from rollmill.tasks.generation.policies import load_policy
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import Completion, PromptGroup, SamplingParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 24, 5])
    parser.add_argument("--packed", action=argparse.BooleanOptionalAction, default=True, help="as an engine does")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.prompts} prompts x 8 answers x {options.max_tokens} tokens, {options.threads} threads")
    print(f"{'dtype':10} {'batch':>6} {'answers':>8} {'changed':>8} {'drifted':>8}")
    for dtype in options.dtypes:
        reference: list[Completion] = []
        for size in options.batch_sizes:
            answers = _answers(options, dtype, size)
            reference = reference or answers
            changed = sum(a.token_ids != b.token_ids for a, b in zip(answers, reference, strict=True))
            drifted = sum(a.logprobs != b.logprobs for a, b in zip(answers, reference, strict=True)) - changed
            print(f"{dtype:10} {size:6} {len(answers):8} {changed:8} {drifted:8}", flush=True)
        print(f"{dtype:10} {_drift(options, reference)}", flush=True)


def _answers(options: argparse.Namespace, dtype: str, batch_size: int) -> list[Completion]:
    model, tokenizer = load_policy(options.model, dtype=dtype, device="cpu")
    if options.packed:
        pack_weights(model)
    scheduler = InferenceScheduler(model, tokenizer, max_batch_size=batch_size)
    groups = _groups(options, tokenizer)
    finished = {group.key: group.completions for group in scheduler.stream(groups)}
    return [completion for group in groups for completion in finished[group.key]]


def _drift(options: argparse.Namespace, answers: list[Completion]) -> str:
    model, tokenizer = load_policy(options.model, dtype="float32", device="cpu")
    prompts = [group.input_ids for group in _groups(options, tokenizer) for _ in group.seeds]
    stored = [
        StoredAnswer(name="", prompt_token_ids=prompt, response_token_ids=answer.token_ids, logprobs=answer.logprobs)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    found = audit(model, stored, SamplingParams())
    return (
        f"against float32: {found.num_tokens} tokens, difference at most {found.max_difference:.2g}, "
        f"mean {found.mean_difference:.2g}, k3 KL {found.k3_kl:.2g}, "
        f"effective sample share {found.effective_sample_share:.4f}"
    )


def _groups(options: argparse.Namespace, tokenizer: PreTrainedTokenizerBase) -> list[PromptGroup]:
    return [
        PromptGroup(
            key=str(number),
            input_ids=tokenizer.apply_chat_template(
                [{"role": "user", "content": f"What is {3 * number + 4} + {7 * number % 50}? " + "Show it. " * number}],
                add_generation_prompt=True,
                return_dict=False,
            ),
            seeds=[row_seed(0, str(number), sample) for sample in range(8)],
            sampling=SamplingParams(max_tokens=options.max_tokens),
        )
        for number in range(options.prompts)
    ]


if __name__ == "__main__":
    main()
