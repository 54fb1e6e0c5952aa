"""What the scheduler promises, on tiny seeded models of several families."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import pytest
import torch
from builders import EOS_ID, FAMILIES, VOCAB_SIZE, byte_tokenizer, tiny_model
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from transformers import (
    LogitsProcessorList,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from rollmill.errors import PolicyError
from rollmill.tasks.generation.scheduler import InferenceScheduler
from rollmill.tasks.generation.seeds import row_seed
from rollmill.tasks.generation.types import Completion, PromptGroup, SamplingParams

LENGTHS = (3, 17, 1, 40, 8, 9, 33)

SETTINGS = {
    "plain": SamplingParams(max_tokens=24),
    "hot": SamplingParams(max_tokens=24, temperature=1.7),
    "cold": SamplingParams(max_tokens=24, temperature=0.5),
    "top_k": SamplingParams(max_tokens=24, top_k=5),
    "top_p": SamplingParams(max_tokens=24, top_p=0.8),
    "penalty": SamplingParams(max_tokens=24, frequency_penalty=1.5, rep_window=4),
    "all": SamplingParams(max_tokens=24, temperature=1.3, top_k=40, top_p=0.9, frequency_penalty=0.7, rep_window=8),
}


def ragged_prompts(lengths: tuple[int, ...] = LENGTHS, seed: int = 1) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 250, (length,), generator=generator).tolist() for length in lengths]


def scheduler(model: PreTrainedModel, **sizes: int) -> InferenceScheduler:
    return InferenceScheduler(model, byte_tokenizer(), **{"max_batch_size": 5, "max_seq_len": 256, **sizes})


def run(model: PreTrainedModel, prompts: list[list[int]], params: SamplingParams, **sizes: int) -> list[Completion]:
    options = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
    seeds = [row_seed(7, str(prompt), 0) for prompt in prompts]
    return scheduler(model, **sizes).run_batch(prompts, seeds=seeds, **options)


def recomputed_logprobs(
    model: PreTrainedModel, prompt: list[int], completion: Completion, params: SamplingParams
) -> list[float]:
    processed = processed_logprobs(model, prompt, completion, params)
    return processed[torch.arange(len(completion.token_ids)), completion.token_ids].tolist()


def processed_logprobs(
    model: PreTrainedModel, prompt: list[int], completion: Completion, params: SamplingParams
) -> torch.Tensor:
    """Teacher-force the completion and process each position's logits as transformers would, (tokens, vocab)."""
    ids = torch.tensor([prompt + completion.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(prompt) - 1 : -1].double()
    for position in range(len(completion.token_ids)):
        window = completion.token_ids[max(0, position - params.rep_window) : position]
        for token, count in Counter(window).items():
            logits[position, token] -= params.frequency_penalty * count
    processors = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    return torch.log_softmax(processors(ids, logits), dim=-1)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_generate_token_for_token_over_a_ragged_batch(family: str) -> None:
    model, prompts = tiny_model(family), ragged_prompts()
    completions = run(model, prompts, SamplingParams(max_tokens=40, temperature=0.0))
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()
        assert completion.logprobs == [0.0] * len(completion.token_ids)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_logprobs_are_those_of_the_processed_distribution(family: str, setting: str) -> None:
    model, prompts, params = tiny_model(family), ragged_prompts(), SETTINGS[setting]
    for prompt, completion in zip(prompts, run(model, prompts, params), strict=True):
        expected = recomputed_logprobs(model, prompt, completion, params)
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_matrix_products_stand_in_for_the_compiled_pass(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.tasks.generation.layout.has_kernels", lambda _states: False)
    model, prompts, params = tiny_model(family), ragged_prompts((*LENGTHS, *LENGTHS[:1] * 3)), SETTINGS["plain"]
    for prompt, completion in zip(prompts, run(model, prompts, params), strict=True):
        assert completion.logprobs == pytest.approx(recomputed_logprobs(model, prompt, completion, params), abs=1e-4)


@pytest.mark.parametrize("setting", ["top_k", "top_p", "all"])
def test_kept_ids_are_those_that_transformers_would_keep(setting: str) -> None:
    model, prompts = tiny_model(), ragged_prompts()
    params = replace(SETTINGS[setting], kept_token_ids=True)
    for prompt, completion in zip(prompts, run(model, prompts, params), strict=True):
        assert completion.kept_token_ids is not None
        processed = processed_logprobs(model, prompt, completion, params)
        kept = [torch.nonzero(torch.isfinite(row))[:, 0].tolist() for row in processed]
        assert completion.kept_token_ids == kept


def test_full_logprobs_are_over_the_whole_vocabulary_at_temperature_one() -> None:
    model, prompts = tiny_model(), ragged_prompts()
    plain = SamplingParams(max_tokens=24)
    for prompt, completion in zip(
        prompts, run(model, prompts, replace(SETTINGS["all"], full_logprobs=True)), strict=True
    ):
        assert completion.full_logprobs == pytest.approx(
            recomputed_logprobs(model, prompt, completion, plain), abs=1e-4
        )


def test_rows_keep_their_own_columns_whatever_their_neighbours_ask_for() -> None:
    model, prompts = tiny_model(), ragged_prompts()
    asking = replace(SETTINGS["top_k"], kept_token_ids=True, full_logprobs=True)
    settings = [asking if place % 2 else SETTINGS["top_k"] for place in range(len(prompts))]
    groups = [
        PromptGroup(key=str(place), input_ids=prompt, seeds=[place], sampling=params)
        for place, (prompt, params) in enumerate(zip(prompts, settings, strict=True))
    ]
    for group in scheduler(model).stream(groups):
        completion = group.completions[0]
        asked = int(group.key) % 2 == 1
        assert (completion.kept_token_ids is not None, completion.full_logprobs is not None) == (asked, asked)
        for ids, token in zip(completion.kept_token_ids or [], completion.token_ids, strict=False):
            assert token in ids
            assert len(ids) >= 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_batched_equals_one_by_one(family: str, dtype: torch.dtype) -> None:
    model, prompts, params = tiny_model(family, dtype=dtype), ragged_prompts(), SETTINGS["all"]
    together = run(model, prompts, params)
    apart = [run(model, [prompt], params)[0] for prompt in prompts]
    assert together == apart


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(
    order=st.permutations(range(6)),
    batch_size=st.integers(1, 20),
    group_size=st.integers(1, 5),
    arrivals=st.lists(st.integers(0, 9), min_size=6, max_size=6),
)
def test_answers_depend_on_nothing_else_in_the_batch(
    order: list[int], batch_size: int, group_size: int, arrivals: list[int]
) -> None:
    """Order, batch size and the step at which each group joins change neither ids nor log-probabilities."""
    prompts = ragged_prompts((3, 30, 1, 18, 9, 60))
    limits = (7, 70, 12, 1, 45, 9)
    groups = [
        PromptGroup(
            key=str(index),
            input_ids=prompt,
            seeds=[row_seed(0, str(index), sample) for sample in range(group_size)],
            sampling=SamplingParams(max_tokens=limits[index], top_p=0.95),
        )
        for index, prompt in enumerate(prompts)
    ]
    expected = {
        group.key: answers.completions
        for group in groups
        for answers in scheduler(MODEL, max_batch_size=group_size).stream([group])
    }
    engine = scheduler(MODEL, max_batch_size=batch_size)
    answers: dict[str, list[Completion]] = {}
    waiting = [(arrivals[place], groups[index]) for place, index in enumerate(order)]
    for step in itertools.count():
        for _, group in [item for item in waiting if item[0] <= step]:
            engine.submit(group)
        waiting = [item for item in waiting if item[0] > step]
        answers.update((group.key, group.completions) for group in engine.step())
        if not waiting and not engine.has_work:
            break
    assert answers == expected


MODEL = tiny_model("llama")


def test_sampled_frequencies_fit_the_distribution() -> None:
    model, prompt, draws = tiny_model("llama"), ragged_prompts()[0], 4000
    params = SamplingParams(max_tokens=1, temperature=1.5, top_k=12)
    group = PromptGroup(
        key="x", input_ids=prompt, seeds=[row_seed(3, "x", index) for index in range(draws)], sampling=params
    )
    (answers,) = scheduler(model, max_batch_size=512).stream([group])
    counts = Counter(completion.token_ids[0] for completion in answers.completions)
    with torch.no_grad():
        logits = model(torch.tensor([prompt])).logits[0, -1].double() / params.temperature
    kept = logits.topk(12)
    expected = torch.softmax(kept.values, -1) * draws
    observed = [counts[token] for token in kept.indices.tolist()]
    assert sum(observed) == draws
    assert chisquare(observed, expected.numpy()).pvalue > 0.001


def test_a_prompt_is_prefilled_once_for_its_whole_group() -> None:
    model, prompt = tiny_model("llama"), ragged_prompts((50,))[0]
    num_tokens = 0

    def count(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], _output: torch.Tensor) -> None:
        nonlocal num_tokens
        num_tokens += inputs[0].numel()

    engine = scheduler(model, max_batch_size=3)
    group = PromptGroup(
        key="x", input_ids=prompt, seeds=list(range(8)), sampling=SamplingParams(max_tokens=2, temperature=2.0)
    )
    handle = model.get_input_embeddings().register_forward_hook(count)
    (answers,) = engine.stream([group])
    handle.remove()
    assert len(answers.completions) == 8
    padding = 16 * 3  # each batch of three rows decodes one more token, in a step padded to 16
    assert num_tokens <= 50 + padding


def test_groups_leave_as_soon_as_they_are_complete_and_the_batch_is_refilled() -> None:
    limits = [2, 30, 2, 2, 2, 2]
    groups = [
        PromptGroup(key=str(index), input_ids=[index + 5], seeds=[index], sampling=SamplingParams(max_tokens=limit))
        for index, limit in enumerate(limits)
    ]
    engine = scheduler(tiny_model("llama", seed=3), max_batch_size=2)
    engine.stop_ids = frozenset()
    engine._stop_array = engine._stop_array[:0]
    order = [group.key for group in engine.stream(groups)]
    assert order == ["0", "2", "3", "4", "5", "1"]
    assert engine.num_tokens_generated == sum(limits)


def test_a_stream_reads_its_source_no_further_ahead_than_the_batch_can_use() -> None:
    read = 0

    def source():  # type: ignore[no-untyped-def]
        nonlocal read
        for index in range(1000):
            read += 1
            yield PromptGroup(key=str(index), input_ids=[1], seeds=[index], sampling=SamplingParams(max_tokens=2))

    stream = scheduler(MODEL, max_batch_size=4).stream(source())
    for _ in range(10):
        next(stream)
    assert read < 40


def test_a_prompt_that_cannot_fit_is_an_error_row_and_the_others_keep_their_own_answers() -> None:
    prompts = ragged_prompts((5, 64, 7))
    completions = run(MODEL, [prompts[0], prompts[1], [], prompts[2], [VOCAB_SIZE]], SETTINGS["plain"], max_seq_len=64)
    reasons = [completion.finish_reason for completion in completions]
    assert [reason == "error" for reason in reasons] == [False, True, True, False, True]
    assert "64 tokens" in str(completions[1].error)
    assert "no tokens" in str(completions[2].error)
    assert "vocabulary" in str(completions[4].error)
    assert completions[0] == run(MODEL, [prompts[0]], SETTINGS["plain"], max_seq_len=64)[0]
    assert completions[3] == run(MODEL, [prompts[2]], SETTINGS["plain"], max_seq_len=64)[0]


def test_an_answer_is_cut_where_the_sequence_is_full() -> None:
    prompt = ragged_prompts((60,))[0]
    (completion,) = run(tiny_model("llama", seed=3), [prompt], SamplingParams(max_tokens=50), max_seq_len=64)
    assert completion.finish_reason == "length"
    assert len(completion.token_ids) == 4


def test_the_stop_token_is_kept_with_its_logprob_and_every_configured_stop_id_ends_an_answer() -> None:
    model, prompts = tiny_model("llama"), ragged_prompts((4,) * 12)
    for number, prompt in enumerate(prompts):
        prompt[0] = number
    model.generation_config.eos_token_id = [EOS_ID, *range(100)]
    completions = run(model, prompts, SamplingParams(max_tokens=200))
    model.generation_config.eos_token_id = EOS_ID
    stopped = [completion for completion in completions if completion.finish_reason == "stop"]
    assert stopped
    for completion in stopped:
        assert completion.token_ids[-1] in {EOS_ID, *range(100)}
        assert not {EOS_ID, *range(100)} & set(completion.token_ids[:-1])
        assert len(completion.logprobs) == len(completion.token_ids)
        assert completion.logprobs[-1] < 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_make_an_error_row_and_poison_no_other(bad: float) -> None:
    model, prompts = tiny_model("llama"), ragged_prompts((6, 6, 6, 6))
    clean = run(model, prompts, SETTINGS["plain"])
    poison = 255
    with torch.no_grad():
        model.get_input_embeddings().weight[poison] = bad
    poisoned = [prompts[0], [poison, 1, 2], *prompts[1:], [3, poison]]
    completions = run(model, poisoned, SETTINGS["plain"], max_batch_size=2)
    assert [completion.finish_reason == "error" for completion in completions] == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]
    assert "not finite" in str(completions[1].error)
    survivors = [completions[place] for place in (0, 2, 3, 4)]
    assert survivors == clean


def test_without_seeds_torchs_own_generator_makes_a_batch_repeatable() -> None:
    prompts = ragged_prompts()
    torch.manual_seed(11)
    first = scheduler(MODEL).run_batch(prompts, max_tokens=12)
    torch.manual_seed(11)
    assert scheduler(MODEL).run_batch(prompts, max_tokens=12) == first
    assert scheduler(MODEL).run_batch(prompts, max_tokens=12) != first


def test_logprobs_can_be_left_out() -> None:
    completions = scheduler(MODEL).run_batch(ragged_prompts(), max_tokens=5, return_logprobs=False)
    assert all(completion.token_ids and not completion.logprobs for completion in completions)


def test_per_prompt_limits_are_respected() -> None:
    completions = scheduler(tiny_model("llama", seed=3)).run_batch(
        [[1], [2], [3]], max_tokens=[1, 5, 9], seeds=[1, 2, 3]
    )
    assert [len(completion.token_ids) for completion in completions] == [1, 5, 9]


def test_training_mode_and_attention_are_put_back() -> None:
    model = tiny_model("llama")
    model.train()
    model.model.layers[0].eval()
    before = [module.training for module in model.modules()]
    attention = model.config._attn_implementation
    scheduler(model).run_batch(ragged_prompts(), max_tokens=3)
    assert [module.training for module in model.modules()] == before
    assert model.config._attn_implementation == attention


def test_caches_shrink_to_nothing_when_a_stream_is_abandoned() -> None:
    engine = scheduler(MODEL)
    stream = engine.stream(
        PromptGroup(key=str(i), input_ids=[1, 2], seeds=[1, 2], sampling=SamplingParams(max_tokens=9)) for i in range(9)
    )
    next(stream)
    stream.close()
    assert not engine.has_work
    assert engine.run_batch([[5, 6]], max_tokens=4, seeds=[1]) == scheduler(MODEL).run_batch(
        [[5, 6]], max_tokens=4, seeds=[1]
    )


def test_a_sliding_window_is_refused_unless_it_changes_nothing() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = MistralForCausalLM(MistralConfig(**sizes, **heads, sliding_window=32))
    with pytest.raises(PolicyError, match="sliding window of 32"):
        InferenceScheduler(model, byte_tokenizer(), max_seq_len=33)
    assert InferenceScheduler(model, byte_tokenizer(), max_seq_len=32).max_seq_len == 32


@pytest.mark.parametrize(("name", "value"), [("max_batch_size", 0), ("max_seq_len", 1)])
def test_sizes_below_their_bound_are_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"{name} must be at least \d, got {value}"):
        scheduler(MODEL, **{name: value})
