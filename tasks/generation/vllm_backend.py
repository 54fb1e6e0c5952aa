"""vLLM in an engine process: token ids go in, token ids and processed log-probabilities come out.

vLLM runs inside the engine process itself, with none of its own, so that whatever ends the engine ends all of it.
Each answer is a request of its own, with its own seed; vLLM shares the prompt's keys and values between them by its
prefix cache.
"""

from __future__ import annotations

import itertools
import logging
import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from rollmill.errors import GenerationError, PolicyError
from rollmill.tasks.generation.backend import Loaded, is_out_of_memory
from rollmill.tasks.generation.model_setup import saved_stop_ids, seq_len_within
from rollmill.tasks.generation.policies import load_config, load_tokenizer, resolve_policy
from rollmill.tasks.generation.quiet import one_line
from rollmill.tasks.generation.requests import reason_to_refuse
from rollmill.tasks.generation.types import (
    FINISH_ERROR,
    FINISH_LENGTH,
    FINISH_STOP,
    Completion,
    FinishedGroup,
    PromptGroup,
)

if TYPE_CHECKING:
    from rollmill.tasks.generation.engine_messages import EngineSpec

_MEMORY_SHARES = {"cpu": 0.25, "cuda": 0.9}
_SEEDS = 2**63  # vLLM keeps seeds in signed integers of 64 bits


def load_vllm(spec: EngineSpec) -> Loaded:
    """Start vLLM with the policy. Raises PolicyError for what it cannot run, GenerationError for lack of memory."""
    kind = spec.device.partition(":")[0]
    folder = resolve_policy(spec.model)
    config = load_config(spec.model)
    max_seq_len = seq_len_within(config, spec.max_seq_len)
    dtype = _dtype(spec.dtype, kind, config.dtype)
    settings = {
        "model": str(folder),
        "tokenizer": str(folder),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": dtype,
        "max_model_len": max_seq_len,
        "max_num_seqs": spec.max_batch_size,
        "gpu_memory_utilization": spec.memory_share or _MEMORY_SHARES[kind],  # of the machine's memory, on a CPU
        "enable_prefix_caching": True,
        "enforce_eager": kind == "cpu",
        "logprobs_mode": "processed_logprobs",
        "use_tqdm_on_load": False,
        "disable_log_stats": True,
    }
    batch = VllmBatch(
        _start(settings, kind),
        stop_ids=saved_stop_ids(folder, config, load_tokenizer(spec.model)),
        max_batch_size=spec.max_batch_size,
        max_seq_len=max_seq_len,
        vocab_size=config.get_text_config().vocab_size,
    )
    return Loaded(dtype=dtype, make_batch=lambda _: batch)


def _dtype(asked: str, kind: str, stored: object) -> str:
    """Return the type that `load_policy` would take; vLLM's own choice would round float32 weights on a GPU."""
    if asked != "auto":
        return asked
    return "float32" if kind == "cpu" else str(stored or "auto").removeprefix("torch.")


def _start(settings: dict[str, Any], kind: str) -> Any:
    logging.getLogger("vllm").setLevel(logging.ERROR)  # it warns of much that is decided here on purpose
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
    try:
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform
    except ImportError as error:
        raise PolicyError(f"engine.backend: vllm is installed but cannot be imported: {one_line(error)}") from error
    if current_platform.device_type != kind:
        raise PolicyError(
            f"engine.devices: this vLLM runs on {current_platform.device_type or 'no device'}, not {kind}"
        )
    try:
        return LLMEngine.from_engine_args(EngineArgs(**settings))
    except ValidationError as error:
        raise PolicyError(f"policy.model {settings['model']}: vLLM cannot run it: {one_line(error)}") from error
    except (ValueError, RuntimeError, MemoryError) as error:
        raise GenerationError(
            f"vLLM cannot start with engine.memory_share {settings['gpu_memory_utilization']:g}: {one_line(error)}"
        ) from error


@dataclass(slots=True)
class _Group:
    """A group in progress, and its finished answers by sample."""

    request: PromptGroup
    completions: dict[int, Completion] = field(default_factory=dict)


class VllmBatch:
    """Answers groups with a vLLM engine; the same contract as `InferenceScheduler`.

    Each answer counts towards `num_tokens_generated` when it ends.
    """

    def __init__(
        self, engine: Any, *, stop_ids: Iterable[int], max_batch_size: int, max_seq_len: int, vocab_size: int
    ) -> None:
        self.max_batch_size = max_batch_size
        self.max_seq_len = max_seq_len
        self.stop_ids = frozenset(stop_ids)
        self.num_rows_finished = 0
        self.num_tokens_generated = 0
        self._engine = engine
        self._vocab_size = vocab_size
        self._numbers = itertools.count()
        self._groups: dict[int, _Group] = {}
        self._refused: list[FinishedGroup] = []

    @property
    def has_work(self) -> bool:
        """Whether another `step` would bring something."""
        return bool(self._groups or self._refused)

    def submit(self, group: PromptGroup) -> None:
        """Queue a group. One that cannot be answered comes back from the next `step` with finish_reason error."""
        from vllm.inputs import tokens_input

        reason = reason_to_refuse(group.input_ids, self.max_seq_len, self._vocab_size)
        if reason is not None or not group.seeds:
            self.num_rows_finished += len(group.seeds)
            self._refused.append(FinishedGroup(key=group.key, completions=[_error(reason or "")] * len(group.seeds)))
            return
        number = next(self._numbers)
        self._groups[number] = _Group(request=group)
        for sample, seed in enumerate(group.seeds):
            prompt = tokens_input(list(group.input_ids))
            self._engine.add_request(f"{number}/{sample}", prompt, self._params(group, seed))

    def step(self) -> list[FinishedGroup]:
        """Give active answers a token each and return the groups that are complete. Raises GenerationError."""
        finished, self._refused = self._refused, []
        if not self._groups:
            return finished
        try:
            outputs = self._engine.step()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise GenerationError(
                "vLLM ran out of memory: lower engine.memory_share, which leaves more of it for what vLLM does not plan"
            ) from error
        for output in outputs:
            if output.finished:
                finished.extend(self._take(output))
        return finished

    def reset(self) -> None:
        """Drop everything that is queued or in progress."""
        self._engine.abort_request([f"{n}/{s}" for n, group in self._groups.items() for s in self._unfinished(group)])
        self._groups.clear()
        self._refused.clear()

    def _unfinished(self, group: _Group) -> set[int]:
        return set(range(len(group.request.seeds))) - group.completions.keys()

    def _params(self, group: PromptGroup, seed: int) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = group.sampling
        return SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            frequency_penalty=sampling.frequency_penalty if sampling.rep_window else 0.0,
            max_tokens=min(sampling.max_tokens, self.max_seq_len - len(group.input_ids)),
            seed=seed % _SEEDS,
            ignore_eos=True,  # of vLLM's own choice; the ids that end an answer are these
            stop_token_ids=sorted(self.stop_ids),
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _take(self, output: Any) -> list[FinishedGroup]:
        """Keep a finished answer; return its group if that completes it."""
        number, sample = map(int, output.request_id.split("/"))
        group = self._groups[number]
        completion = _completion(output.outputs[0], is_greedy=group.request.sampling.temperature == 0)
        group.completions[sample] = completion
        self.num_rows_finished += 1
        self.num_tokens_generated += len(completion.token_ids)
        if len(group.completions) < len(group.request.seeds):
            return []
        del self._groups[number]
        in_order = [group.completions[place] for place in range(len(group.request.seeds))]
        return [FinishedGroup(key=group.request.key, completions=in_order)]


def _completion(answer: Any, *, is_greedy: bool) -> Completion:
    """Return vLLM's answer as ours, or an error that says what is wrong with it."""
    token_ids, flat = list(answer.token_ids), answer.logprobs
    if answer.finish_reason not in (FINISH_STOP, FINISH_LENGTH):
        return _error(f"vLLM ended the answer with {answer.finish_reason}")
    if flat is None or list(flat.token_ids) != token_ids:
        return _error("vLLM's log-probabilities are not those of its tokens")
    logprobs = [0.0] * len(token_ids) if is_greedy else list(flat.logprobs)
    bad = next((place for place, value in enumerate(flat.logprobs) if not math.isfinite(value)), None)
    if bad is not None:
        return _error(f"vLLM's log-probability of response token {bad} is not finite")
    return Completion(token_ids=token_ids, logprobs=logprobs, finish_reason=answer.finish_reason)


def _error(message: str) -> Completion:
    return Completion(token_ids=[], logprobs=[], finish_reason=FINISH_ERROR, error=message)
