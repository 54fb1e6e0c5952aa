"""`RolloutRunner`: a trainer that generates and scores its own rollouts, in its own process."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rollmill.errors import InputError
from rollmill.storage.refresh import RefreshInterval
from rollmill.storage.results import RolloutResult
from rollmill.tasks.generation.batches import batch_prompts
from rollmill.tasks.generation.generator import RolloutGenerator
from rollmill.tasks.prompts.jsonable import to_jsonable
from rollmill.tasks.prompts.prompt import to_json
from rollmill.tasks.rewards.base import BaseRewardModel
from rollmill.tasks.rewards.strict import score_strictly

logger = logging.getLogger(__name__)

DEFAULT_MAX_CACHE_BYTES = 2 * 2**30


class RolloutRunner:
    """Answers and scores a trainer's batches, and gives the same answers again until the interval ends.

        runner = RolloutRunner(generator, reward_model, rollout_interval=64)
        for batch in dataloader:
            result, is_fresh = runner(batch)
            loss(result).backward()
            optimizer.step()
            runner.step()

    Batches are told apart by what they hold, so a dataloader may cycle through as many as it likes: within one
    interval of `rollout_interval` steps each is generated once, and the rollouts of all of them go stale together,
    when the interval ends. Rollouts are kept on the CPU, up to `max_cache_bytes` of them; beyond that the batch that
    was used longest ago is forgotten, and generated anew should it come again. They are not copied: do not change
    them in place. The model's training mode is afterwards as it was before, whatever happens.

    A call raises ValueError for a batch that cannot be read, JobError when the reward model needs a column that the
    batch lacks, and RewardError when its scores have another shape than [B, G] or are not finite, or when it fails for
    every answer. An answer for which it raises has reward NaN. Raises InputError for a setting out of bounds.
    """

    def __init__(
        self,
        generator: RolloutGenerator,
        reward_model: BaseRewardModel,
        rollout_interval: int = 512,
        *,
        max_cache_bytes: int = DEFAULT_MAX_CACHE_BYTES,
    ) -> None:
        if max_cache_bytes < 0:
            raise InputError(f"max_cache_bytes must be at least 0, got {max_cache_bytes}")
        self._generator = generator
        self._reward_model = reward_model
        self._interval = RefreshInterval(rollout_interval)
        self._max_cache_bytes = max_cache_bytes
        self._cache: OrderedDict[str, RolloutResult] = OrderedDict()

    def __call__(self, batch: Mapping[str, Any]) -> tuple[RolloutResult, bool]:
        """Return the batch's rollouts, and whether they were generated just now."""
        if self._interval.is_due:
            self._cache.clear()
            self._interval.renew()
        key = _content_key(batch)
        found = self._cache.get(key)
        if found is not None:
            self._cache.move_to_end(key)
            return found, False
        result = score_strictly(self._generator.generate(batch), self._reward_model)
        self._keep(key, result)
        return result, True

    def step(self) -> None:
        """Count one optimizer step."""
        self._interval.step()

    def clear_cache(self) -> None:
        """Forget all rollouts, so that every batch is generated anew."""
        self._cache.clear()
        self._interval.expire()

    @property
    def num_cache_bytes(self) -> int:
        """Bytes of tensors and text that are kept now."""
        return sum(map(_num_bytes, self._cache.values()))

    def state_dict(self) -> dict[str, Any]:
        """Return where the interval is. Rollouts are not part of it: after loading, batches are generated anew."""
        return {"interval": self._interval.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state` was taken."""
        self._cache.clear()
        self._interval.load_state_dict(state["interval"])

    def _keep(self, key: str, result: RolloutResult) -> None:
        self._cache[key] = result
        while self.num_cache_bytes > self._max_cache_bytes:
            self._cache.popitem(last=False)
            logger.warning(
                "the rollouts of one interval take more than max_cache_bytes=%d; batches that come again are generated "
                "again", self._max_cache_bytes,
            )  # fmt: skip


def _content_key(batch: Mapping[str, Any]) -> str:
    """Return a hash of the batch's prompts, their ids and columns."""
    prompts = [
        [prompt.prompt_id, prompt.content, to_jsonable(prompt.columns, "batch")] for prompt in batch_prompts(batch)
    ]
    return hashlib.sha256(to_json(prompts).encode()).hexdigest()


def _num_bytes(result: RolloutResult) -> int:
    tensors = sum(value.nbytes for value in vars(result).values() if isinstance(value, Tensor))
    texts = sum(len(text) for group in (result.prompt_texts, *result.response_texts) for text in group)
    return tensors + texts
