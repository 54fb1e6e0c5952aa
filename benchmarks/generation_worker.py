"""One generator in a process of its own, for `generation.py`: reads a JSON request a line, answers with a JSON line.

Runs in two environments: rollmill's, and one that has vLLM instead; so each engine imports what it needs itself.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Request = dict[str, Any]
"""prompts: lists of token ids; limits: tokens to sample, one a prompt; group_size; batch_size: rows at once."""

Engine = Callable[[Request], int]
"""Answers every prompt group_size times, ignoring stop ids, and returns how many tokens were asked for and made."""


def rollmill_engine(folder: str, dtype: str) -> Engine:
    from rollmill.tasks.generation.packed_weights import pack_weights
    from rollmill.tasks.generation.policies import load_policy
    from rollmill.tasks.generation.scheduler import InferenceScheduler
    from rollmill.tasks.generation.types import PromptGroup, SamplingParams

    model, tokenizer = load_policy(folder, dtype=dtype, device="cpu")
    pack_weights(model)
    model.generation_config.eos_token_id = None
    tokenizer.eos_token = None

    def run(request: Request) -> int:
        scheduler = InferenceScheduler(model, tokenizer, max_batch_size=request["batch_size"])
        groups = [
            PromptGroup(
                key=str(place),
                input_ids=prompt,
                seeds=[place * request["group_size"] + sample for sample in range(request["group_size"])],
                sampling=SamplingParams(max_tokens=limit),
            )
            for place, (prompt, limit) in enumerate(zip(request["prompts"], request["limits"], strict=True))
        ]
        shard_size = request.get("prompts_per_shard") or len(groups)
        for start in range(0, len(groups), shard_size):
            for _ in scheduler.stream(groups[start : start + shard_size]):
                pass
        return scheduler.num_tokens_generated

    return run


def generate_engine(folder: str, dtype: str) -> Engine:
    """transformers' `generate`: rows of a call all run to the call's longest limit, so prompts are sorted by limit."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(request: Request) -> int:
        prompts_at_once = max(1, request["batch_size"] // request["group_size"])
        work = sorted(zip(request["prompts"], request["limits"], strict=True), key=lambda item: item[1])
        for start in range(0, len(work), prompts_at_once):
            prompts, limits = zip(*work[start : start + prompts_at_once], strict=True)
            longest = max(map(len, prompts))
            ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
            model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=max(limits),
                min_new_tokens=max(limits),
                num_return_sequences=request["group_size"],
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )
        return sum(request["limits"]) * request["group_size"]

    return run


def generate_batch_engine(folder: str, dtype: str) -> Engine:
    """transformers' continuous batching, one call for each limit, since a call has one limit for all."""
    import torch
    from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()

    def run(request: Request) -> int:
        tokens = 0
        for limit in sorted(set(request["limits"])):
            prompts = [p for p, own in zip(request["prompts"], request["limits"], strict=True) if own == limit]
            outputs = model.generate_batch(
                [prompt for prompt in prompts for _ in range(request["group_size"])],
                generation_config=GenerationConfig(
                    max_new_tokens=limit, do_sample=True, top_k=0, top_p=1.0, eos_token_id=-1, pad_token_id=0
                ),
                continuous_batching_config=ContinuousBatchingConfig(
                    return_logprobs=True, max_requests_per_batch=request["batch_size"]
                ),
            )
            tokens += sum(len(output.generated_tokens) for output in outputs.values())
        return tokens

    return run


def vllm_on_all_cores_engine(folder: str, dtype: str) -> Engine:
    """vLLM as it is when told to use every core; by itself it leaves one to the process that feeds it."""
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    return vllm_engine(folder, dtype)


def vllm_engine(folder: str, dtype: str) -> Engine:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=folder,
        dtype=dtype,
        max_model_len=2048,
        max_num_seqs=256,
        gpu_memory_utilization=0.15,  # of the machine's memory, on the CPU backend too
        logprobs_mode="processed_logprobs",
        seed=0,
    )

    def run(request: Request) -> int:
        settings = [
            SamplingParams(
                n=request["group_size"],
                temperature=1.0,
                max_tokens=limit,
                min_tokens=limit,
                ignore_eos=True,
                logprobs=0,
            )
            for limit in request["limits"]
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        outputs = engine.generate(prompts, settings, use_tqdm=False)
        return sum(len(answer.token_ids) for output in outputs for answer in output.outputs)

    return run


ENGINES = {
    "rollmill": rollmill_engine,
    "generate": generate_engine,
    "generate_batch": generate_batch_engine,
    "vllm": vllm_engine,
    "vllm_on_all_cores": vllm_on_all_cores_engine,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("folder")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # engines and their child processes print; only answers go to the real standard output
    import torch

    torch.set_num_threads(options.threads)
    before = _status_bytes("VmRSS")
    run = ENGINES[options.engine](options.folder, options.dtype)
    for line in sys.stdin:
        _forget_peak()
        begin = time.perf_counter()
        tokens = run(json.loads(line))
        seconds = time.perf_counter() - begin
        result = {"tokens": tokens, "seconds": seconds, "peak_bytes": _status_bytes("VmHWM") - before}
        print(json.dumps(result), file=answers, flush=True)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
