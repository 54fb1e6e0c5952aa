"""TRL's GRPOTrainer fed from a store: rollmill has answered and scored, TRL only trains.

    pip install 'trl==1.16.0'
    python examples/trl_grpo_from_store.py --policy ./checkpoints/step-400 --store s3://bucket/rollouts

TRL asks for completions by `rollout_func` and for their rewards by a reward function; here both come from the next
minibatch of a `CachedRolloutRunner`, so training goes over to newer rollouts as they are published. TRL keeps the
log-probabilities that a `rollout_func` returns, but divides by ones that it computes itself, as if the rollouts were
those of the current weights; so `compute_loss` is given the stored ones in their place.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rollmill import CachedRolloutRunner, RolloutStore


class StoredRollouts(TrainerCallback):
    """Gives GRPOTrainer the minibatches of a runner, and tells the runner of its steps."""

    def __init__(self, runner: CachedRolloutRunner) -> None:
        self._runner = runner

    def rollout_func(self, prompts: list[str], _: GRPOTrainer) -> dict[str, list[Any]]:
        """Return the next groups, one answer after the other; `prompts` only says how many TRL wants."""
        result, _ = self._runner()
        questions = without_padding(result.prompts, result.prompt_mask)
        repeated = [ids for ids in questions for _ in range(result.group_size)]
        if len(repeated) != len(prompts):
            raise ValueError(f"TRL wants {len(prompts)} answers, the minibatch has {len(repeated)}")
        mask = result.response_mask.flatten(0, 1)
        return {
            "prompt_ids": repeated,
            "completion_ids": without_padding(result.responses.flatten(0, 1), mask),
            "logprobs": without_padding(result.logprobs_old.flatten(0, 1), mask),
            "stored_reward": result.rewards.flatten().tolist(),
        }

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._runner.step()


class StoredRatioTrainer(GRPOTrainer):
    """Takes the importance ratio against the log-probabilities that were stored with the answers."""

    def compute_loss(self, model: torch.nn.Module, inputs: dict[str, Any], *rest: Any, **further: Any) -> torch.Tensor:
        stored = {"old_per_token_logps": inputs["sampling_per_token_logps"]}
        return super().compute_loss(model, {**inputs, **stored}, *rest, **further)


def without_padding(rows: torch.Tensor, mask: torch.Tensor) -> list[list[Any]]:
    return [row[kept].tolist() for row, kept in zip(rows, mask, strict=True)]


def stored_reward(stored_reward: list[float], **_: Any) -> list[float]:
    """Return the rewards that came with the rollouts."""
    return stored_reward


def main() -> None:
    options = parse()
    store, process = RolloutStore(options.store), PartialState()  # of accelerate: which of how many processes this is
    version = store.latest()
    sampling = json.loads(version.read(["run_id"]).schema.metadata[b"sampling"])
    if sampling.get("top_p", 1) < 1 or sampling.get("top_k") or sampling.get("frequency_penalty"):
        raise SystemExit("TRL computes log-probabilities at a temperature alone; the rollouts were drawn otherwise")
    runner = CachedRolloutRunner(
        store, rollout_interval=options.interval, prompts_per_batch=options.prompts_per_batch, drop_last=True,
        rank=process.process_index, world_size=process.num_processes,
    )  # fmt: skip
    rollouts = StoredRollouts(runner)
    trainer = StoredRatioTrainer(
        model=AutoModelForCausalLM.from_pretrained(options.policy),
        processing_class=AutoTokenizer.from_pretrained(options.policy),
        reward_funcs=stored_reward,
        rollout_func=rollouts.rollout_func,
        callbacks=[rollouts],
        train_dataset=Dataset.from_dict({"prompt": ["from the store"] * options.prompts_per_batch}),
        args=GRPOConfig(
            output_dir=options.out,
            max_steps=options.steps,
            per_device_train_batch_size=options.prompts_per_batch * version.group_size,
            steps_per_generation=1,
            num_generations=version.group_size,
            temperature=sampling["temperature"],
            learning_rate=options.learning_rate,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            bf16=torch.cuda.is_available(),
        ),
    )
    trainer.train()
    trainer.save_model(options.out)
    for entry in trainer.state.log_history:
        if "reward" in entry:
            print(json.dumps({name: entry[name] for name in ("loss", "reward", "clip_ratio/region_mean")}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", required=True, help="a folder or hub id that transformers loads")
    parser.add_argument("--store", required=True, help="a folder or s3:// prefix")
    parser.add_argument("--out", default="grpo-trl", help="where the trained policy goes")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--interval", type=int, default=16, help="steps until newer rollouts are looked for")
    parser.add_argument("--prompts-per-batch", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-6)
    return parser.parse_args()


if __name__ == "__main__":
    main()
