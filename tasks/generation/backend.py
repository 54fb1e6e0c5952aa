"""What an engine process needs of whatever runs the model. There are two: rollmill's own scheduler, and vLLM."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rollmill.errors import JobError
from rollmill.tasks.generation.config import EngineConfig, SamplingConfig
from rollmill.tasks.generation.types import FinishedGroup, PromptGroup

if TYPE_CHECKING:
    from rollmill.tasks.generation.engine_messages import EngineSpec

TORCH, VLLM = "torch", "vllm"

_LEAST_VLLM_TEMPERATURE, _MOST_VLLM_TEMPERATURE = 0.01, 2.0
_MOST_VLLM_PENALTY = 2.0


class Batch(Protocol):
    """Answers in progress: groups go in by `submit`, and `step` goes on with all and returns those that are complete.

    A group that cannot be answered comes back from the next step with finish_reason error. Not thread-safe.
    """

    max_batch_size: int
    num_rows_finished: int
    num_tokens_generated: int

    @property
    def has_work(self) -> bool:
        """Whether another `step` would bring something."""
        ...

    def submit(self, group: PromptGroup) -> None: ...

    def step(self) -> list[FinishedGroup]: ...

    def reset(self) -> None:
        """Drop everything that is queued or in progress."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A policy in memory: the number format of its weights, and what makes an empty batch of up to so many answers."""

    dtype: str
    make_batch: Callable[[int], Batch]


def load_backend(spec: EngineSpec) -> Loaded:
    """Load the policy of an engine process. Raises PolicyError, and GenerationError when another try may help."""
    if spec.backend == VLLM:
        from rollmill.tasks.generation.vllm_backend import load_vllm

        return load_vllm(spec)
    return _load_torch(spec)


def _load_torch(spec: EngineSpec) -> Loaded:
    import torch

    from rollmill.tasks.generation.packed_weights import pack_weights
    from rollmill.tasks.generation.policies import load_policy
    from rollmill.tasks.generation.scheduler import InferenceScheduler

    torch.set_num_threads(spec.num_threads)
    model, tokenizer = load_policy(spec.model, dtype=spec.dtype, device=spec.device)
    pack_weights(model)

    def make_batch(max_batch_size: int) -> Batch:
        return InferenceScheduler(model, tokenizer, max_batch_size=max_batch_size, max_seq_len=spec.max_seq_len)

    return Loaded(dtype=str(model.dtype), make_batch=make_batch)


def check_backend(engine: EngineConfig, sampling: SamplingConfig) -> None:
    """Raise JobError when the backend is not installed, or would sample otherwise than the job says."""
    if engine.backend != VLLM:
        return
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:  # a mere folder of that name has no origin
        raise JobError(
            "engine.backend: vllm is not installed beside rollmill; docs/generation.md says how to install it, or set "
            "engine.backend to torch"
        )
    for name in ("kept_token_ids", "full_logprobs"):
        if getattr(sampling, name):
            raise JobError(f"sampling.{name}: vLLM does not tell; engine.backend torch does")
    temperature, penalty = sampling.temperature, sampling.frequency_penalty
    if temperature and not _LEAST_VLLM_TEMPERATURE <= temperature <= _MOST_VLLM_TEMPERATURE:
        raise JobError(
            f"sampling.temperature: vLLM samples at 0 or from {_LEAST_VLLM_TEMPERATURE:g} to "
            f"{_MOST_VLLM_TEMPERATURE:g}, got {temperature:g}; engine.backend torch has no such bounds"
        )
    if not penalty or not sampling.rep_window:
        return
    if abs(penalty) > _MOST_VLLM_PENALTY:
        raise JobError(
            f"sampling.frequency_penalty: vLLM takes -{_MOST_VLLM_PENALTY:g} to {_MOST_VLLM_PENALTY:g}, got "
            f"{penalty:g}; engine.backend torch has no such bounds"
        )
    if sampling.rep_window < sampling.max_tokens:
        raise JobError(
            f"sampling.rep_window: vLLM counts tokens over the whole answer, so a frequency_penalty needs a rep_window "
            f"of at least max_tokens ({sampling.max_tokens}), got {sampling.rep_window}; engine.backend torch takes any"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that memory ran out, on the CPU or on a GPU."""
    import torch

    words = ("not enough memory", "can't allocate memory", "out of memory")
    text = str(error).lower()
    from_onednn = text.strip() == "could not create a primitive"  # what it says when it cannot allocate
    return from_onednn or isinstance(error, MemoryError | torch.OutOfMemoryError) or any(word in text for word in words)
