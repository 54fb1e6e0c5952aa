"""Off-policy GRPO in one file: rollmill answers and scores, this trainer learns from what is stored.

Every `--interval` steps the trainer publishes its weights, which starts the next rollout run; between two runs it reads
minibatches of the stored groups. Kill it anywhere and start it again: it goes on from the last checkpoint, and a
rollout run that was cut off goes on from its last shard.

    python examples/off_policy_grpo.py --folder grpo

The loss is the clipped importance-weighted objective of GRPO (Shao et al., "DeepSeekMath", 2024), averaged over tokens.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rollmill import CachedRolloutRunner, RolloutJob, RolloutResult, RolloutStore
from rollmill.flows.command import run_job
from rollmill.tasks.generation import load_policy

ROWS_AT_ONCE = 32


def main() -> None:
    options = parse()
    folder = Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    checkpoint = load_checkpoint(folder / "checkpoint.pt")
    model, tokenizer = load_policy(checkpoint.get("weights", options.policy), dtype="float32", device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    store = RolloutStore(options.store or str(folder / "rollouts"))
    runner = CachedRolloutRunner(
        store, rollout_interval=options.interval, prompts_per_batch=options.prompts_per_batch,
        max_staleness=1, on_stale="reuse",
    )  # fmt: skip
    step = checkpoint.get("step", 0)
    if checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
        runner.load_state_dict(checkpoint["runner"])
    before = checkpoint.get("before") or held_out(options, folder, options.policy)
    while step < options.steps:
        version = step // options.interval
        if step % options.interval == 0:
            run_job(rollout_job(options, folder, publish_weights(model, tokenizer, folder, version), version))
        runner.policy_version = version
        result, is_fresh = runner()
        figures = learn(model, optimizer, result, options)
        runner.step()
        step += 1
        log(folder / "curve.csv", {"step": step, "version": version, "is_fresh": is_fresh, **figures})
        if step % options.checkpoint_every == 0 or step == options.steps:
            save_checkpoint(folder, model, tokenizer, optimizer, runner, step, before)
    after = held_out(options, folder, publish_weights(model, tokenizer, folder, step // options.interval + 1))
    report(before, after)


def learn(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, result: RolloutResult, options: Any
) -> dict[str, float]:
    """Take one optimizer step on a minibatch, and return its figures."""
    advantages = group_advantages(result.rewards)
    usable = result.response_mask & ~torch.isnan(advantages)[..., None]
    num_tokens = int(usable.sum())
    logprobs, clipped = torch.zeros_like(result.logprobs_old), 0
    for rows in torch.arange(advantages.numel()).split(ROWS_AT_ONCE):
        new = response_logprobs(model, result, rows, options.temperature)
        mask = usable.flatten(0, 1)[rows]
        ratio = (new - result.logprobs_old.flatten(0, 1)[rows]).exp()
        advantage = advantages.flatten()[rows].nan_to_num()[:, None]
        bounded = ratio.clamp(1 - options.clip, 1 + options.clip)
        loss = -torch.minimum(ratio * advantage, bounded * advantage)[mask].sum() / max(num_tokens, 1)
        loss.backward()
        logprobs.flatten(0, 1)[rows] = new.detach()
        clipped += int(((ratio != bounded) & mask).sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    difference = (logprobs - result.logprobs_old)[usable]
    weights = difference.exp()
    return {
        "reward": float(result.rewards.nanmean()),
        "kl": float((difference.expm1() - difference).mean()),  # k3: Schulman, "Approximating KL Divergence", 2020
        "clip_share": clipped / max(num_tokens, 1),
        "staleness": float((result.policy_version - result.policy_versions).float().mean()),
        "effective_sample_share": float(weights.sum() ** 2 / (len(weights) * (weights**2).sum())),
    }


def group_advantages(rewards: Tensor) -> Tensor:
    """Return rewards [B, G] less their group's mean, over its deviation; NaN stays NaN and counts in neither."""
    mean = rewards.nanmean(-1, keepdim=True)
    deviation = ((rewards - mean) ** 2).nanmean(-1, keepdim=True).sqrt()
    return (rewards - mean) / (deviation + 1e-4)


def response_logprobs(model: PreTrainedModel, result: RolloutResult, rows: Tensor, temperature: float) -> Tensor:
    """Return the log-probability of each response token under the sampling distribution, [rows, R]."""
    groups = rows // result.group_size
    prompts, prompt_mask = result.prompts[groups], result.prompt_mask[groups]
    responses, mask = result.responses.flatten(0, 1)[rows], result.response_mask.flatten(0, 1)[rows]
    ids, attention = torch.cat([prompts, responses], 1), torch.cat([prompt_mask, mask], 1).long()
    positions = (attention.cumsum(1) - 1).clamp(min=0)
    length = responses.shape[1]
    logits = model(ids, attention_mask=attention, position_ids=positions, logits_to_keep=length + 1).logits[:, :-1]
    chosen = (logits / temperature).log_softmax(-1).gather(-1, responses[..., None])[..., 0]
    return torch.where(mask, chosen, 0.0)


def rollout_job(options: Any, folder: Path, policy: Path | str, version: int, **changes: Any) -> RolloutJob:
    """Return the job that answers this version's prompts."""
    numbers = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    prompts = {
        "source": "reasoning_gym:chain_sum",
        "limit": options.prompts_per_round,
        "options": {"seed": version, **numbers},
    }
    job = {
        "name": "grpo",
        "store": options.store or str(folder / "rollouts"),
        "policy": {"model": str(policy), "version": version, "dtype": "float32"},
        "prompts": prompts,
        "sampling": {"group_size": 8, "max_tokens": 32, "temperature": options.temperature, "seed": version},
        "rewards": [{"type": "last_number"}],
        "shards": {"prompts_per_shard": 8},
    }
    return RolloutJob.model_validate(job | changes)


def held_out(options: Any, folder: Path, policy: Path | str) -> list[float]:
    """Return each held-out prompt's mean reward; the same prompts and seeds whatever the policy."""
    name = "before" if policy == options.policy else "after"
    job = rollout_job(options, folder, policy, 1_000_000, name=name, store=str(folder / "held-out" / name))
    run_job(job)
    return RolloutStore(job.store).latest().result().rewards.nanmean(-1).tolist()


def report(before: list[float], after: list[float]) -> None:
    """Print the mean rewards on held-out prompts, and a bootstrap interval of what they gained."""
    gains = [new - old for old, new in zip(before, after, strict=True)]
    chance = random.Random(0)
    means = sorted(statistics.fmean(chance.choices(gains, k=len(gains))) for _ in range(2000))
    print(f"held-out reward: {statistics.fmean(before):.3f} before, {statistics.fmean(after):.3f} after")
    print(f"gain {statistics.fmean(gains):+.3f} (95 % interval {means[50]:+.3f} to {means[1949]:+.3f})")


def publish_weights(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, folder: Path, version: int) -> Path:
    """Write the policy as a folder of safetensors, whole or not at all, and return it."""
    place, unfinished = folder / f"policy-{version}", folder / f"policy-{version}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    shutil.rmtree(place, ignore_errors=True)
    return unfinished.rename(place)


def save_checkpoint(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, optimizer: torch.optim.Optimizer,
    runner: CachedRolloutRunner, step: int, before: list[float],
) -> None:  # fmt: skip
    weights = publish_weights(model, tokenizer, folder / "checkpoints", step)
    values = {"step": step, "weights": str(weights), "optimizer": optimizer.state_dict(), "runner": runner.state_dict()}
    torch.save({**values, "before": before}, folder / "checkpoint.new")
    os.replace(folder / "checkpoint.new", folder / "checkpoint.pt")
    for old in (folder / "checkpoints").glob("policy-*"):
        if old != weights:
            shutil.rmtree(old)


def load_checkpoint(place: Path) -> dict[str, Any]:
    return torch.load(place, weights_only=True) if place.exists() else {}


def log(place: Path, figures: dict[str, Any]) -> None:
    """Print a line, and add it to the curve."""
    print("  ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)
    is_new = not place.exists()
    with place.open("a", newline="") as file:
        writer = csv.DictWriter(file, figures)
        if is_new:
            writer.writeheader()
        writer.writerow(figures)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="grpo", help="policies, checkpoint, curve, rollouts")
    parser.add_argument("--store", help="a folder or s3:// prefix of its own for the rollouts")
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--interval", type=int, default=2, help="steps between two rollout runs")
    parser.add_argument("--checkpoint-every", type=int, default=2, help="steps")
    parser.add_argument("--prompts-per-round", type=int, default=32)
    parser.add_argument("--prompts-per-batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--clip", type=float, default=0.2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
