"""Generation against its peers on the same work, in one run (make bench-generation).

Every engine lives in a process of its own and works alone while it is measured; rounds are interleaved, medians shown.
The floor is the time that the work's matrix products would take at the rate measured here, at the model's own shapes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rollmill.tasks.generation.engine_environment import openmp_environment
from rollmill.tasks.generation.policies import load_policy, load_tokenizer, resolve_policy

ENGINES = ["rollmill", "generate", "generate_batch", "vllm", "vllm_on_all_cores"]
GROUP_SIZE = 8
ROWS = 128  # at once, and in the measured matrix products


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Prompts with a limit each; every engine samples exactly that many tokens.

    `generate_batch` has one limit for a whole call, so it is left out where limits differ.
    """

    name: str
    prompts: list[list[int]]
    limits: list[int]
    batch_size: int = ROWS
    prompts_per_shard: int | None = None
    engines_without: tuple[str, ...] = ()

    @property
    def request(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "limits": self.limits,
            "group_size": GROUP_SIZE,
            "batch_size": self.batch_size,
            "prompts_per_shard": self.prompts_per_shard,
        }

    @property
    def num_tokens(self) -> int:
        return sum(self.limits) * GROUP_SIZE


@dataclass(slots=True)
class Worker:
    """One engine's process."""

    name: str
    command: Sequence[str]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None

    def run(self, work: Work, *, measured: bool = True) -> None:
        if self.process is None:
            own = openmp_environment() if self.name == "rollmill" else {}  # as a job's engines have it
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
                env={**os.environ, **own},
            )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(work.request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        answer = json.loads(line)
        if answer["tokens"] != work.num_tokens:
            raise SystemExit(f"{self.name} sampled {answer['tokens']} tokens of {work.num_tokens}")
        if measured:
            self.seconds.setdefault(work.name, []).append(answer["seconds"])
            self.peak_bytes[work.name] = max(answer["peak_bytes"], self.peak_bytes.get(work.name, 0))

    def stop(self) -> None:
        """End the process and those that it started, which would keep their memory."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def tokens_per_second(self, work: Work) -> float:
        return work.num_tokens / statistics.median(self.seconds[work.name])


def works(names: Sequence[str]) -> list[Work]:
    """Return the named kinds of work: a short prompts, b long prompts, c skewed lengths, d shards."""
    tokenizer = load_tokenizer("smollm2-135m")
    chance = random.Random(0)

    def ask(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    def sums(count: int) -> list[list[int]]:
        numbers = ((chance.randint(1, 99), chance.randint(1, 99)) for _ in range(count))
        return [ask(f"What is {a} + {b}? End with the final number.") for a, b in numbers]

    story = [list(torch.randint(20, 40000, (512,), generator=torch.Generator().manual_seed(n))) for n in range(8)]
    skewed = [128 if place % 16 == 0 else chance.randint(4, 16) for place in range(64)]
    peers = ("generate", "generate_batch", "vllm", "vllm_on_all_cores")
    every = {
        "a": Work(name="a", prompts=sums(16), limits=[128] * 16),
        "b": Work(name="b", prompts=[[int(token) for token in row] for row in story], limits=[64] * 8, batch_size=64),
        "c": Work(name="c", prompts=sums(64), limits=skewed, engines_without=("generate_batch",)),
        "d": Work(name="d", prompts=sums(64), limits=skewed, engines_without=peers),
        "d, shard by shard": Work(
            name="d, shard by shard", prompts=sums(64), limits=skewed, prompts_per_shard=4, engines_without=peers
        ),
    }
    return [work for name, work in every.items() if name[0] in names]


class Floor:
    """The model's matrix products, and how fast they go here."""

    def __init__(self, dtype: torch.dtype) -> None:
        model, _ = load_policy("smollm2-135m", dtype=str(dtype).removeprefix("torch."), device="cpu")
        body = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
        head = model.get_output_embeddings()
        self._weights = [module.weight.detach() for module in body]
        self.flops_per_token = 2 * sum(weight.numel() for weight in self._weights)
        self.flops_per_prompt_token = self.flops_per_token - 2 * head.weight.numel()
        self._inputs = {w.shape[1]: torch.randn(ROWS, w.shape[1]).to(dtype) for w in self._weights}
        self.rates: list[float] = []

    @torch.inference_mode()
    def measure(self) -> None:
        """Time one pass of ROWS rows through every matrix of the model."""
        times = []
        for _ in range(7):
            begin = time.perf_counter()
            for weight in self._weights:
                torch.nn.functional.linear(self._inputs[weight.shape[1]], weight)
            times.append(time.perf_counter() - begin)
        self.rates.append(self.flops_per_token * ROWS / statistics.median(times))

    def seconds(self, work: Work) -> float:
        prompt_tokens = sum(map(len, work.prompts))
        flops = work.num_tokens * self.flops_per_token + prompt_tokens * self.flops_per_prompt_token
        return flops / statistics.median(self.rates)


def measure(options: argparse.Namespace, dtype: str) -> None:
    """Run all rounds in one number format, and print the table."""
    folder, here = str(resolve_policy("smollm2-135m")), Path(__file__).parent / "generation_worker.py"
    pythons = {name: options.vllm_python if name.startswith("vllm") else sys.executable for name in options.engines}
    flags = ["--dtype", dtype, "--threads", str(options.threads)]
    workers = [Worker(name, [pythons[name], str(here), name, folder, *flags]) for name in options.engines]
    tasks, floor = works(options.work), Floor(getattr(torch, dtype))
    warm = Work(name="warm", prompts=tasks[0].prompts[:2], limits=[4, 4])
    for worker in workers:
        worker.run(warm, measured=False)
    for number in range(options.rounds):
        floor.measure()
        for work in tasks:
            for worker in workers:
                again = number and worker.name in options.once
                if again or worker.name in work.engines_without:
                    continue
                worker.run(work)
                print(f"  {dtype} round {number} {work.name} {worker.name} {worker.seconds[work.name][-1]:.1f} s",
                      file=sys.stderr, flush=True)  # fmt: skip
    report(dtype, tasks, workers, floor)
    for worker in workers:
        worker.stop()


def report(dtype: str, tasks: Sequence[Work], workers: Sequence[Worker], floor: Floor) -> None:
    """Print one line for each work and engine."""
    ours = workers[0]
    print(f"\n{dtype}: matrix products at {statistics.median(floor.rates) / 1e9:.0f} GFLOP/s with {ROWS} rows")
    print(f"{'work':18} {'engine':18} {'rounds':>6} {'tokens/s':>9} {'ours is':>9} {'of floor':>9} {'peak MB':>8}")
    for work in tasks:
        for worker in workers:
            if work.name not in worker.seconds:
                continue
            speed = worker.tokens_per_second(work)
            share = floor.seconds(work) / statistics.median(worker.seconds[work.name])
            print(
                f"{work.name:18} {worker.name:18} {len(worker.seconds[work.name]):6} {speed:9.0f} "
                f"{ours.tokens_per_second(work) / speed:8.2f}x {share:9.0%} {worker.peak_bytes[work.name] / 1e6:8.0f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=ENGINES)
    parser.add_argument(
        "--once", nargs="*", default=["generate_batch"], help="engines measured in the first round only"
    )
    parser.add_argument("--work", nargs="+", default=["a", "b", "c", "d"])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vllm-python", default=".venv-vllm/bin/python")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for dtype in options.dtypes:
        measure(options, dtype)


if __name__ == "__main__":
    main()
