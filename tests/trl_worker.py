"""A process that trains on an exported set with TRL for two steps, in an environment that has TRL and not rollmill."""

from __future__ import annotations

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")

import datasets
import torch
import trl
from transformers import AutoModelForCausalLM, AutoTokenizer

TRAINERS = {
    "sft": (trl.SFTTrainer, trl.SFTConfig),
    "dpo": (trl.DPOTrainer, trl.DPOConfig),
    "kto": (trl.KTOTrainer, trl.KTOConfig),
}


def main() -> None:
    training_format, policy, folder, scratch = sys.argv[1:]
    torch.set_num_threads(1)
    loaded = datasets.load_dataset(folder, cache_dir=f"{scratch}/cache")
    make_trainer, make_config = TRAINERS[training_format]
    model = AutoModelForCausalLM.from_pretrained(policy)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    trainer = make_trainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(policy),
        args=make_config(
            output_dir=f"{scratch}/out",
            max_steps=2,
            per_device_train_batch_size=4,
            per_device_eval_batch_size=4,
            learning_rate=1e-3,
            warmup_steps=0,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            seed=0,
        ),
        train_dataset=loaded["train"],
        eval_dataset=loaded["test"],
    )
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    changed = sum(not torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())
    evaluated = trainer.evaluate()["eval_loss"]
    found = {"steps": trainer.state.global_step, "losses": losses, "eval_loss": evaluated, "changed": changed}
    sys.stdout.write(json.dumps({**found, "trl": trl.__version__, "records": len(loaded["train"])}) + "\n")


if __name__ == "__main__":
    main()
