"""What a model says of itself, and running it without leaving traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from rollmill.errors import PolicyError


def stop_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end an answer: the generation config's and the tokenizer's end of sequence."""
    return _stop_ids(model.generation_config, tokenizer)


def saved_stop_ids(folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return what `stop_token_ids` would say of the policy in `folder`, without loading its weights."""
    if (folder / "generation_config.json").is_file():
        return _stop_ids(GenerationConfig.from_pretrained(folder, local_files_only=True), tokenizer)
    return _stop_ids(GenerationConfig.from_model_config(config), tokenizer)


def _stop_ids(generation: GenerationConfig | None, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    configured = generation.eos_token_id if generation is not None else None
    ids = {configured} if isinstance(configured, int) else set(configured or ())
    if tokenizer.eos_token_id is not None:
        ids.add(tokenizer.eos_token_id)
    return frozenset(ids)


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch dropout off, and put each module's own mode back afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def usable_seq_len(model: PreTrainedModel, asked: int | None) -> int:
    """Return the most tokens of prompt and answer together: what was asked for, or the model's own limit.

    Raises PolicyError when the model has fewer positions or names no limit, ValueError when less than 2 was asked for.
    """
    return seq_len_within(model.config, asked)


def seq_len_within(config: PreTrainedConfig, asked: int | None) -> int:
    """Return what `usable_seq_len` says of a model with this configuration."""
    own = config.get_text_config().to_dict().get("max_position_embeddings")
    if asked is None:
        if own is None:
            raise PolicyError(f"{config.model_type} names no max_position_embeddings: give max_seq_len")
        return int(own)
    if asked < 2:
        raise ValueError(f"max_seq_len must be at least 2, got {asked}")
    if own is not None and asked > own:
        raise PolicyError(f"max_seq_len {asked} is above the model's own limit of {own} positions")
    return asked
