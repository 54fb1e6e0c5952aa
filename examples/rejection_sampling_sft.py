"""Rejection sampling in one file: eight answers to each prompt, the best correct one kept, and a short fine-tuning.

    python examples/rejection_sampling_sft.py --folder sft

It asks the policy for sums, lets rollmill keep the best answers as a training set, trains on them with nothing but
torch, and asks both policies for sums that no training prompt has. Seeds are fixed: the same machine gives the same
numbers.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from reasoning_gym import create_dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.logging import disable_progress_bar

from rollmill.tasks.generation import load_policy

SYSTEM_PROMPT = "Work out the sum and end your answer with the final number."
ANSWERS_A_PROMPT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One kept answer as token ids; the loss is of `answer` alone."""

    prompt: list[int]
    answer: list[int]


def main() -> None:
    options = parse()
    folder = Path(options.folder)
    if folder.exists():
        raise SystemExit(f"{folder} is there already; give another --folder, for a result is of one whole run")
    folder.mkdir(parents=True)
    started = time.monotonic()
    train, held_out = write_prompts(folder, options.prompts, options.held_out)
    before = pass_at_1(folder, "before", options.policy, held_out, options)
    training_set = run(folder, sampling_job(folder, train, options))["training_set"]
    print(f"best of {ANSWERS_A_PROMPT}: {training_set['records']} of {training_set['rows']} answers kept")
    trained = fine_tuned(read_messages(training_set), folder / "policy", options)
    after = pass_at_1(folder, "after", str(trained), held_out, options)
    for name, (correct, asked) in (("before", before), ("after", after)):
        print(f"pass@1 {name:<6}  {correct / asked:.3f}  {correct} of {asked} held-out prompts, greedy")
    print(f"{time.monotonic() - started:.0f} s in all")


def write_prompts(folder: Path, num_train: int, num_held_out: int) -> tuple[Path, Path]:
    """Write two prompt datasets that share no question."""
    size = 4 * (num_train + num_held_out)
    made = create_dataset("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=2, seed=0, size=size)
    answers = {entry["question"]: entry["answer"] for entry in made}
    rows = [{"prompt": question, "answer": answer} for question, answer in answers.items()]
    if len(rows) < num_train + num_held_out:
        raise SystemExit(f"there are {len(rows)} different sums; ask for fewer --prompts or --held-out")
    paths = (folder / "train.jsonl", folder / "held_out.jsonl")
    for path, part in zip(paths, (rows[:num_train], rows[num_train : num_train + num_held_out]), strict=True):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in part))
    return paths


def job(folder: Path, name: str, policy: str, prompts: Path, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "name": name,
        "store": str(folder / "rollouts"),
        "policy": {"model": policy, "dtype": "float32"},
        "prompts": {"source": str(prompts), "system_prompt": SYSTEM_PROMPT},
        "rewards": [{"type": "last_number"}],
        "shards": {"prompts_per_shard": 16},
        "sampling": {"group_size": 1, "max_tokens": options.max_tokens, "temperature": 0.0},
        "engine": {"devices": "cpu"},
    }


def sampling_job(folder: Path, prompts: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the job that answers the training prompts and keeps the best answer to each that is worth it."""
    sampling = {"group_size": ANSWERS_A_PROMPT, "max_tokens": options.max_tokens, "temperature": 0.7, "seed": 0}
    selection = {"min_reward": options.min_reward, "keep_truncated": options.keep_truncated}
    export = {"format": "sft", "out": str(folder / "training_set"), "selection": selection, "test_fraction": 0}
    return {**job(folder, "best-of", options.policy, prompts, options), "sampling": sampling, "export": export}


def run(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Run a job as the command line does, and return its report."""
    path = folder / f"{values['name']}.json"  # JSON is YAML
    path.write_text(json.dumps(values))
    command = [sys.executable, "-m", "rollmill.cli", "run", str(path), "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.returncode)
    report: dict[str, Any] = json.loads(ended.stdout)
    return report


def pass_at_1(folder: Path, name: str, policy: str, prompts: Path, options: argparse.Namespace) -> tuple[int, int]:
    """Return how many prompts the policy's greedy answer solves, and how many it was asked."""
    figures = run(folder, job(folder, name, policy, prompts, options))["figures"]
    return sum(passed * times for _, passed, times in figures["passes"]), figures["groups"]


def read_messages(training_set: dict[str, Any]) -> list[list[dict[str, str]]]:
    """Return the conversations of a training set, by the files that its manifest names."""
    paths = [Path(training_set["url"], file["path"]) for file in training_set["splits"]["train"]["files"]]
    return [row["messages"] for path in paths for row in pq.read_table(path, columns=["messages"]).to_pylist()]


def fine_tuned(kept: list[list[dict[str, str]]], folder: Path, options: argparse.Namespace) -> Path:
    """Train the policy on conversations and save it as a policy folder."""
    torch.manual_seed(0)
    model, tokenizer = load_policy(options.policy, dtype="float32", device="cpu")
    examples = [tokenized(messages, tokenizer) for messages in kept]
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=options.learning_rate, weight_decay=0.0)
    chance = random.Random(0)
    for epoch in range(options.epochs):
        chance.shuffle(examples)
        losses = []
        for begin in range(0, len(examples), options.batch_size):
            loss = answer_loss(model, examples[begin : begin + options.batch_size])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.3f} over {len(losses)} steps")
    disable_progress_bar()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tokenized(messages: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase) -> Example:
    """Return the prompt as the policy is asked, and the answer with the token that ends it."""
    prompt = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
    answer = tokenizer.encode(messages[-1]["content"], add_special_tokens=False)
    return Example(
        prompt=tokenizer.encode(prompt, add_special_tokens=False), answer=[*answer, int(tokenizer.eos_token_id)]
    )


def answer_loss(model: PreTrainedModel, examples: list[Example]) -> Tensor:
    """Return the mean negative log-likelihood of the answers' tokens."""
    length = max(len(example.prompt) + len(example.answer) for example in examples)
    ids = torch.zeros(len(examples), length, dtype=torch.long)  # (batch, tokens)
    labels = torch.full_like(ids, -100)  # what cross_entropy leaves out
    mask = torch.zeros_like(ids)
    for row, example in enumerate(examples):
        begin, end = len(example.prompt), len(example.prompt) + len(example.answer)
        ids[row, :end] = torch.tensor([*example.prompt, *example.answer])
        labels[row, begin:end] = torch.tensor(example.answer)
        mask[row, :end] = 1
    logits = model(input_ids=ids, attention_mask=mask).logits  # (batch, tokens, vocab)
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--folder", required=True, help="where everything of this run goes; it must not be there yet")
    parser.add_argument("--policy", default="smollm2-135m", help="a bundled name, a hub id or a folder")
    parser.add_argument("--prompts", type=int, default=128, help="prompts that are answered for training")
    parser.add_argument("--held-out", type=int, default=128, help="prompts that both policies are asked")
    parser.add_argument("--max-tokens", type=int, default=48, help="most tokens of an answer")
    parser.add_argument("--min-reward", type=float, default=1.0, help="least reward of a kept answer")
    parser.add_argument("--keep-truncated", action="store_true", help="keep answers that were cut at --max-tokens")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
