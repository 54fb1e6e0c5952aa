"""A classifier scores each conversation as it would alone, whatever else is in its batch."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import torch
from builders import BOS_ID, EOS_ID, PAD_ID, VOCAB_SIZE, byte_tokenizer, save_policy
from hypothesis import given, settings
from hypothesis import strategies as st
from store_builders import parts_of
from tokenizers.processors import TemplateProcessing
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from rollmill.errors import JobError, RewardError
from rollmill.tasks.rewards.item import Item
from rollmill.tasks.rewards.model import SequenceClassifier
from rollmill.tasks.rewards.scoring import Scorer

MakeTable = Callable[..., pa.Table]
MakeScorer = Callable[..., Scorer]
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}</s>{% endfor %}"
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
}
GPT2 = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "initializer_range": 0.3}
MODELS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1, pad_token_id=EOS_ID)),
    "qwen2": lambda: Qwen2ForSequenceClassification(
        Qwen2Config(**SIZES, num_key_value_heads=2, id2label={0: "bad", 1: "good"}, pad_token_id=PAD_ID)
    ),
    "gpt2": lambda: GPT2ForSequenceClassification(GPT2Config(**GPT2, num_labels=1, pad_token_id=EOS_ID)),
    "bert": lambda: BertForSequenceClassification(BertConfig(**SIZES, num_labels=3, pad_token_id=PAD_ID)),
}
LABELS: dict[str, int | str | None] = {"llama": None, "qwen2": "good", "gpt2": None, "bert": 2}
INDEX = {"llama": 0, "qwen2": 1, "gpt2": 0, "bert": 2}


def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    """Return a byte tokenizer: with a template and a BOS, without a template, or with pairs as BERT has them."""
    tokenizer = byte_tokenizer(TEMPLATE if family in ("llama", "qwen2") else None)
    tokenizer.pad_token = "</s>"
    ids = [("<s>", BOS_ID), ("</s>", EOS_ID)]
    if family == "bert":
        tokenizer.cls_token, tokenizer.sep_token = "<s>", "</s>"
        pair = TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=ids)
        tokenizer.backend_tokenizer.post_processor = pair
    if family == "llama":
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=ids)
    return tokenizer


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Save one small classifier of each family with its tokenizer."""
    saved = {}
    for family, make in MODELS.items():
        torch.manual_seed(1)
        saved[family] = tmp_path_factory.mktemp(family)
        make().eval().save_pretrained(saved[family])
        tokenizer_of(family).save_pretrained(saved[family])
    return saved


@pytest.fixture(scope="module")
def classifiers(folders: dict[str, Path]) -> dict[str, SequenceClassifier]:
    return {family: SequenceClassifier(str(folder), label=LABELS[family]) for family, folder in folders.items()}


def alone(folder: Path, family: str, prompt: str, response: str) -> float:
    """Return the logit of one conversation by the model's own forward, without padding, read at the last position."""
    model = type(MODELS[family]()).from_pretrained(folder).eval()
    tokenizer = tokenizer_of(family)
    if family == "bert":
        encoded = tokenizer([prompt], [response], return_token_type_ids=True, return_tensors="pt")
        assert encoded["token_type_ids"].max() == 1
    else:
        text = f"{prompt}{response}</s>" if family == "gpt2" else f"[user]{prompt}</s>[assistant]{response}</s>"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        encoded = {"input_ids": torch.tensor([[BOS_ID] * (family == "llama") + ids])}
    model.config.pad_token_id = None
    with torch.inference_mode():
        return float(model(**encoded).logits[0, INDEX[family]])


@pytest.mark.parametrize("family", MODELS)
def test_a_conversation_scores_as_it_would_alone(
    classifiers: dict[str, SequenceClassifier], folders: dict[str, Path], family: str
) -> None:
    prompts = ["2+2?", "a pad</s> inside", "long " * 10]
    responses = [["4", "</s></s>"], ["", "no"], ["yes", "y" * 60]]
    scores = classifiers[family].score(prompts, responses)
    expected = [
        [alone(folders[family], family, p, r) for r in group] for p, group in zip(prompts, responses, strict=True)
    ]
    torch.testing.assert_close(scores, torch.tensor(expected), atol=1e-5, rtol=1e-5)
    assert len({round(value, 4) for row in expected for value in row}) == 6


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=6), st.integers(1, 300), st.sampled_from(["llama", "bert"]))
def test_what_else_is_in_the_batch_changes_nothing(
    classifiers: dict[str, SequenceClassifier], texts: list[str], tokens_per_batch: int, family: str
) -> None:
    classifier = classifiers[family]
    classifier._tokens_per_batch = tokens_per_batch
    together = classifier.score(["q"] * len(texts), [[text] for text in texts])
    one_by_one = torch.cat([classifier.score(["q"], [[text]]) for text in texts])
    torch.testing.assert_close(together, one_by_one, atol=1e-5, rtol=1e-5)


def test_a_conversation_begins_with_one_bos_and_ends_with_its_answer(
    classifiers: dict[str, SequenceClassifier], folders: dict[str, Path]
) -> None:
    encode = classifiers["llama"]._classifier.encode
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    row = encode(Item(prompt="ignored", response="yo", messages=messages))
    assert row.token_ids.count(BOS_ID) == 1
    assert tokenizer_of("llama").decode(row.token_ids) == "<s>[system]Be brief.</s>[user]Hi</s>[assistant]yo</s>"
    begun = [*messages, {"role": "assistant", "content": "y"}]
    assert encode(Item(prompt="", response="o", messages=begun)).token_ids == row.token_ids
    doubled = encode(Item(prompt="", response="o", messages=[{"role": "user", "content": "<s>"}]))
    assert doubled.token_ids[:2].count(BOS_ID) == 1
    score = classifiers["llama"].score(["ignored"], [["yo"]], prompt_messages=[messages])
    assert score.item() != classifiers["llama"].score(["ignored"], [["yo"]]).item()


def test_a_probability_is_the_sigmoid_or_the_softmax_of_the_logits(folders: dict[str, Path]) -> None:
    def scores(family: str, label: int | None, probability: bool) -> torch.Tensor:
        return SequenceClassifier(str(folders[family]), label=label, probability=probability).score(["q"], [["a", "b"]])

    torch.testing.assert_close(scores("llama", None, True), scores("llama", None, False).sigmoid())
    logits = torch.stack([scores("bert", label, False) for label in range(3)])
    torch.testing.assert_close(scores("bert", 1, True), logits.softmax(0)[1])


def test_half_precision_is_near(folders: dict[str, Path]) -> None:
    exact = SequenceClassifier(str(folders["llama"])).score(["q"], [["a", "bb", "ccc"]])
    near = SequenceClassifier(str(folders["llama"]), dtype="bfloat16").score(["q"], [["a", "bb", "ccc"]])
    torch.testing.assert_close(near, exact, atol=0.2, rtol=0.1)


def test_a_long_conversation_fails_by_name_or_loses_tokens_that_are_counted(folders: dict[str, Path]) -> None:
    groups = [[Item(prompt="q", response="r" * 300), Item(prompt="q", response="r")]]
    long, short = SequenceClassifier(str(folders["llama"])).rate(groups)[0]
    assert long.value is None
    assert "tokens, more than the limit of 256" in str(long.reason)
    assert short.value is not None
    with pytest.raises(RewardError, match="more than the limit"):
        SequenceClassifier(str(folders["llama"])).score(["q"], [["r" * 300]])
    cut = SequenceClassifier(str(folders["llama"]), max_tokens=40, too_long="truncate")
    long, kept = cut.rate(groups)[0]
    row = cut._encode(groups[0][0])
    assert (kept.value, kept.parts) == (pytest.approx(short.value, abs=1e-4), {})
    assert len(row.token_ids) == 40  # type: ignore[union-attr]
    assert row.token_ids[0] == BOS_ID  # type: ignore[union-attr]
    assert long.parts == {"tokens_cut": float(1 + len("[user]q") + 1 + len("[assistant]") + 300 + 1 - 40)}


def test_a_template_that_refuses_costs_its_answer(classifiers: dict[str, SequenceClassifier]) -> None:
    classifier = classifiers["qwen2"]
    tokenizer = classifier._classifier._tokenizer
    refusing = "{{ raise_exception('no empty answers') if messages[-1]['content'] == '' else 'x' }}"
    plain, tokenizer.chat_template = tokenizer.chat_template, refusing
    (empty, fine), _ = classifier.rate([[Item(prompt="q", response=""), Item(prompt="q", response="a")], []])
    tokenizer.chat_template = plain
    assert "refuses the conversation: no empty answers" in str(empty.reason)
    assert fine.value is not None


@pytest.mark.parametrize(
    ("family", "fields", "message"),
    [
        ("qwen2", {}, r"has several logits, and label must name one: 0 \(bad\), 1 \(good\)"),
        ("qwen2", {"label": 2}, "has no label 2"),
        ("qwen2", {"label": "fine"}, "has no label 'fine'"),
        ("llama", {"label": 1}, "has no label 1"),
        ("llama", {"device": "cuda:99"}, "cuda:99 is not there"),
    ],
)
def test_an_unclear_classifier_is_refused(
    folders: dict[str, Path], family: str, fields: dict[str, object], message: str
) -> None:
    with pytest.raises(JobError, match=message):
        SequenceClassifier(str(folders[family]), **fields)  # type: ignore[arg-type]


def test_a_job_is_refused_before_any_weights_are_loaded(
    folders: dict[str, Path], scorer: MakeScorer, tmp_path: Path
) -> None:
    with pytest.raises(JobError, match=r"rewards\[0\]: reward model .* several logits"):
        scorer({"type": "model", "model": str(folders["qwen2"])})
    with pytest.raises(JobError, match="there is no such folder"):
        scorer({"type": "model", "model": str(tmp_path / "none")})
    with pytest.raises(JobError, match="is no sequence classifier but LlamaForCausalLM"):
        scorer({"type": "model", "model": str(save_policy(tmp_path / "policy"))})


def test_weights_without_a_head_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    model = LlamaForSequenceClassification.from_pretrained(folders["llama"])
    state = {name: value for name, value in model.state_dict().items() if name != "score.weight"}
    model.save_pretrained(tmp_path, state_dict=state)
    tokenizer_of("llama").save_pretrained(tmp_path)
    with pytest.raises(JobError, match=r"its weights lack score\.weight"):
        SequenceClassifier(str(tmp_path))


def test_a_job_scores_with_a_classifier_in_one_process_of_its_own(
    folders: dict[str, Path], response_table: MakeTable, scorer: MakeScorer
) -> None:
    job = scorer(
        {"type": "model", "model": str(folders["llama"]), "dtype": "float32", "name": "rm", "answers_per_call": 2}
    )
    table = response_table([["4", "5"], ["r" * 300, "no"]])
    scored = job.score_table(table, {"p0": "2+2?", "p1": [{"role": "user", "content": "Hm?"}]})
    values = scored["reward"].to_pylist()
    expected = [alone(folders["llama"], "llama", p, r) for p, r in [("2+2?", "4"), ("2+2?", "5"), ("Hm?", "no")]]
    assert values[2] is None
    assert "more than the limit of 256" in scored["reward_error"][2].as_py()
    assert [value for value in values if value is not None] == pytest.approx(expected, abs=1e-4)
    assert parts_of(scored["reward_parts"][0].as_py())["rm"] == values[0]
