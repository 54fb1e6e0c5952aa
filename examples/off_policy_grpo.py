"""Off-policy GRPO in one file: rollmill answers and scores, this trainer learns from what is stored.

Every `--interval` steps the trainer publishes its weights, which starts a rollout run, and reads stored groups until
the next. Kill it anywhere and start it again: it goes on from the last weights, and a cut-off run from its last shard.

    python examples/off_policy_grpo.py --folder grpo

Rollouts run in this process by default. With `--announce NAME` the weights are announced to the Prefect server that
PREFECT_API_URL names, a deployment that follows NAME makes the rollouts in `--store`, and the trainer waits for them.

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

from rollmill import CachedRolloutRunner, RolloutJob, RolloutResult, RolloutStore, announce_policy, run_job
from rollmill.tasks.generation import load_policy

ROWS_AT_ONCE, CLIP = 32, 0.2


def main() -> None:
    options = parse()
    (folder := options.folder).mkdir(parents=True, exist_ok=True)
    before = held_out(options, "before", options.policy)
    checkpoint = torch.load(place, weights_only=True) if (place := folder / "checkpoint.pt").exists() else {}
    model, tokenizer = load_policy(checkpoint.get("weights", options.policy), dtype="float32", device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, weight_decay=0.0)
    runner = CachedRolloutRunner(
        RolloutStore(options.store or str(folder / "rollouts")), rollout_interval=options.interval,
        prompts_per_batch=options.prompts_per_batch, null_rewards="keep", policy_version=checkpoint.get("step", 0),
        max_staleness=options.interval - 1, on_stale="wait",
    )  # fmt: skip
    if checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
        runner.load_state_dict(checkpoint["runner"])
    for step in range(checkpoint.get("step", 0), options.steps):
        if step % options.interval == 0:
            weights = publish_weights(model, tokenizer, folder, step)
            state = {"optimizer": optimizer.state_dict(), "runner": runner.state_dict()}
            save_checkpoint(folder, {"step": step, "weights": str(weights), **state})
            start_rollouts(options, weights, step)
        result, is_fresh = runner()
        figures = learn(model, optimizer, result, options)
        figures["staleness"] = float((step - result.policy_versions).float().mean())
        log(folder / "curve.csv", {"step": step, "is_fresh": int(is_fresh), **figures})
        runner.step(policy_version=step + 1)
    after = held_out(options, "after", publish_weights(model, tokenizer, folder, options.steps))
    report(before, after)


def start_rollouts(options: Any, weights: Path, version: int) -> None:
    """Have this version's prompts answered: here, or by whoever follows the announcement."""
    if options.announce:
        announce_policy(str(weights.resolve()), version, name=options.announce)
    else:
        run_job(rollout_job(options, weights, version, options.prompts_per_round))


def learn(
    model: PreTrainedModel, optimizer: torch.optim.Optimizer, result: RolloutResult, options: Any
) -> dict[str, float]:
    """Take one optimizer step on a minibatch, and return its figures; they are of the answers with an advantage."""
    advantages = group_advantages(result.rewards).flatten()  # (answers,)
    rows = (advantages.nan_to_num() != 0).nonzero()[:, 0]  # the others have no gradient, failed scores among them
    num_tokens = max(1, int(result.response_mask.flatten(0, 1)[rows].sum()))
    differences, num_clipped = [torch.zeros(1)], 0
    for part in rows.split(ROWS_AT_ONCE) if len(rows) else ():
        mask = result.response_mask.flatten(0, 1)[part]
        new = response_logprobs(model, result, part, options.temperature)
        ratio = (new - result.logprobs_old.flatten(0, 1)[part]).exp()  # (answers, tokens)
        bounded, advantage = ratio.clamp(1 - CLIP, 1 + CLIP), advantages[part, None]
        loss = -torch.minimum(ratio * advantage, bounded * advantage)[mask].sum() / num_tokens
        loss.backward()
        differences.append(ratio.detach()[mask].log())
        num_clipped += int((bounded * advantage < ratio * advantage)[mask].sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    difference = torch.cat(differences)
    weights = difference.exp()
    return {
        "reward": float(result.rewards.nanmean()),
        "kl": float((difference.expm1() - difference).mean()),  # k3: Schulman, "Approximating KL Divergence", 2020
        "clip_share": num_clipped / num_tokens,
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


def rollout_job(options: Any, policy: Path | str, version: int, limit: int, **changes: Any) -> RolloutJob:
    """Return the job that answers this version's prompts, so many of them."""
    numbers = {"seed": version, "min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}
    job = {
        "name": "grpo",
        "store": options.store or str(options.folder / "rollouts"),
        "policy": {"model": str(policy), "version": version, "dtype": "float32"},
        "prompts": {"source": "reasoning_gym:chain_sum", "limit": limit, "options": numbers},
        "sampling": {"group_size": 8, "max_tokens": 32, "temperature": options.temperature, "seed": version},
        "rewards": [{"type": "last_number"}],
        "shards": {"prompts_per_shard": 8},
    }
    return RolloutJob.model_validate(job | changes)


def held_out(options: Any, name: str, policy: Path | str) -> list[float]:
    """Return each held-out prompt's mean reward; the same prompts and seeds whatever the policy."""
    changes = {"name": name, "store": str(options.folder / "held-out" / name)}
    job = rollout_job(options, policy, 1_000_000, 2 * options.prompts_per_round, **changes)
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
    place, unfinished = folder / f"policy-{version}", folder / "policy.unfinished"
    if not place.exists():
        shutil.rmtree(unfinished, ignore_errors=True)
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(place)
    return place


def save_checkpoint(folder: Path, values: dict[str, Any]) -> None:
    torch.save(values, folder / "checkpoint.new")
    os.replace(folder / "checkpoint.new", folder / "checkpoint.pt")
    for old in folder.glob("policy-*"):
        if old != Path(values["weights"]):
            shutil.rmtree(old)


def log(place: Path, figures: dict[str, Any]) -> None:
    """Print a line, and add it to the curve."""
    print("  ".join(f"{name} {value:.4g}" for name, value in figures.items()), flush=True)
    with place.open("a", newline="") as file:
        writer = csv.DictWriter(file, figures)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerow(figures)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("grpo"), help="policies, checkpoint, curve, rollouts")
    parser.add_argument("--store", help="a folder or s3:// prefix of its own for the rollouts")
    parser.add_argument("--announce", metavar="NAME", help="let a deployment that follows NAME make the rollouts")
    parser.add_argument("--policy", default="smollm2-135m")
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--interval", type=int, default=2, help="steps between two rollout runs")
    parser.add_argument("--prompts-per-round", type=int, default=32)
    parser.add_argument("--prompts-per-batch", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--temperature", type=float, default=1.0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
