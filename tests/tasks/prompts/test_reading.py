"""What is written to a prompt file is what is read, in the shapes that users of other trainers have."""

from __future__ import annotations

import csv
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.jsonable import to_jsonable
from rollmill.tasks.prompts.prompt import Prompt, prompts_from_table, prompts_to_table
from rollmill.tasks.prompts.reading import read_prompts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PROMPT = TEXT.filter(lambda text: text.strip() != "")
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.sampled_from(["system", "user"]), "content": PROMPT}), min_size=1)
TOKEN_IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1)
VALUE = st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, width=32), TEXT)
JSON_VALUE = st.recursive(
    VALUE.filter(lambda value: not isinstance(value, float) or math.isfinite(value)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def read(path: Path | str, **fields: Any) -> list[Prompt]:
    return list(read_prompts(PromptsConfig(source=str(path), **fields)))


def write_jsonl(path: Path, rows: list[dict[str, Any]], ascii_only: bool = False) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries({"prompt": PROMPT | MESSAGES | TOKEN_IDS, "answer": JSON_VALUE})))
def test_jsonl_is_read_back_equal(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        for ascii_only in (True, False):
            prompts = read(write_jsonl(Path(folder, "a.jsonl"), rows, ascii_only))
            assert [prompt.content for prompt in prompts] == [row["prompt"] for row in rows]
            assert [prompt.columns for prompt in prompts] == [{"answer": row["answer"]} for row in rows]


@settings(max_examples=50, deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "prompt": MESSAGES,
                "answer": st.none() | TEXT,
                "scores": st.lists(st.floats(allow_nan=False, allow_infinity=False)),
                "reward_model": st.fixed_dictionaries({"ground_truth": TEXT, "style": st.just("rule")}),
            }
        ),
        min_size=1,
    )
)
def test_parquet_is_read_back_equal(rows: list[dict[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        prompts = read(write_parquet(Path(folder, "a.parquet"), rows))
    assert [{"prompt": prompt.content, **prompt.columns} for prompt in prompts] == rows


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(st.tuples(PROMPT, TEXT)))
def test_csv_is_read_back_equal(rows: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("prompt", "answer"), *rows])
        prompts = read(path)
    assert [(prompt.content, prompt.columns["answer"]) for prompt in prompts] == rows


@settings(max_examples=50, deadline=None)
@given(
    prompts=st.lists(
        st.builds(
            Prompt,
            prompt_id=TEXT,
            content=st.none() | PROMPT | MESSAGES | TOKEN_IDS,
            columns=st.dictionaries(TEXT, JSON_VALUE, max_size=3),
            error=st.none() | TEXT,
        )
    )
)
def test_the_stored_table_gives_the_prompts_back(prompts: list[Prompt]) -> None:
    assert list(prompts_from_table(prompts_to_table(prompts))) == prompts


def test_messages_and_input_ids_are_prompts_too(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hello"}]
    rows = [{"messages": chat}, {"input_ids": [1, 2, 3]}, {"prompt": "text", "messages": chat}]
    assert [prompt.content for prompt in read(write_jsonl(tmp_path / "a.jsonl", rows))] == [chat, [1, 2, 3], "text"]


def test_csv_cells_of_messages_and_input_ids_are_json(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('messages,input_ids\n"[{""role"": ""user"", ""content"": ""hi""}]",\n,"[1, 2]"\n,[1\n')
    chat, ids, broken = read(path)
    assert chat.content == [{"role": "user", "content": "hi"}]
    assert ids.content == [1, 2]
    assert "row 3: input_ids is not valid JSON" in (broken.error or "")


def test_a_chosen_column_holds_the_prompt(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"question": "2+2?", "prompt": "unused", "answer": "4"}])
    [prompt] = read(path, prompt_column="question")
    assert prompt.content == "2+2?"
    assert prompt.columns == {"prompt": "unused", "answer": "4"}


def test_rows_in_the_shape_of_trl_work_unchanged(tmp_path: Path) -> None:
    plain = {"prompt": "What is 2+2?", "solution": "4"}
    chat = {"prompt": [{"role": "user", "content": "What is 3+3?"}], "answer": "6", "level": 2}
    first, second = read(write_jsonl(tmp_path / "a.jsonl", [plain, chat]))
    assert (first.content, first.columns) == ("What is 2+2?", {"solution": "4"})
    assert (second.content, second.columns) == (chat["prompt"], {"answer": "6", "level": 2})


def test_rows_in_the_shape_of_verl_work_unchanged(tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"How many are {index}?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(index)},
            "extra_info": {"split": "train", "index": index},
        }
        for index in range(3)
    ]
    prompts = read(write_parquet(tmp_path / "train.parquet", rows))
    assert [{"prompt": prompt.content, **prompt.columns} for prompt in prompts] == rows
    assert len({prompt.prompt_id for prompt in prompts}) == 3


def test_null_fields_that_arrow_adds_to_messages_are_dropped(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}, {"role": "user", "content": "you", "name": "Ann"}]
    [prompt] = read(write_parquet(tmp_path / "a.parquet", [{"prompt": chat}]))
    assert prompt.content == chat


def test_a_limit_reads_the_first_rows_alone(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{index}", "prompt_id": str(index)} for index in range(5)] + [
        {"prompt": "x", "prompt_id": "0"}
    ]
    assert [p.prompt_id for p in read(write_jsonl(tmp_path / "a.jsonl", rows), limit=3)] == ["0", "1", "2"]


def test_given_ids_stay_and_numbers_become_text(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "prompt_id": "first"}, {"prompt": "b", "prompt_id": 7}]
    assert [prompt.prompt_id for prompt in read(write_jsonl(tmp_path / "a.jsonl", rows))] == ["first", "7"]


def test_two_equal_prompts_are_two_groups_with_ids_that_stay(tmp_path: Path) -> None:
    rows = [{"prompt": "same"}, {"prompt": "same"}, {"prompt": "same", "prompt_id": None}]
    prompts = read(write_jsonl(tmp_path / "a.jsonl", rows))
    assert len({prompt.prompt_id for prompt in prompts}) == 3
    assert prompts == read(write_parquet(tmp_path / "a.parquet", rows))


def test_an_id_that_comes_twice_is_refused_by_name(tmp_path: Path) -> None:
    rows = [{"prompt": str(index), "prompt_id": f"id-{index % 4}"} for index in range(6)]
    config = PromptsConfig(source=str(write_jsonl(tmp_path / "a.jsonl", rows)))
    prompts = read_prompts(config)
    assert len(list(islice(prompts, 4))) == 4
    with pytest.raises(PromptSourceError, match=r"prompt_id 'id-0' comes twice in .*a\.jsonl, at rows 1 and 5"):
        next(prompts)


def test_values_of_many_types_become_json(tmp_path: Path) -> None:
    table = pa.table(
        {
            "prompt": ["a"],
            "when": [datetime(2026, 1, 2, tzinfo=UTC)],
            "price": [Decimal("1.10")],
            "raw": [b"caf\xc3\xa9"],
            "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "missing": [math.nan],
            "category": pa.array(["x"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    [prompt] = read(tmp_path / "a.parquet")
    assert prompt.columns == {
        "when": "2026-01-02T00:00:00+00:00",
        "price": "1.10",
        "raw": "café",
        "pairs": [["k", 1]],
        "missing": None,
        "category": "x",
    }


def test_numpy_values_become_plain_ones() -> None:
    value = {"a": np.arange(2), "b": np.float32(0.5), "c": np.bool_(True), "d": np.array(["x", None], dtype=object)}
    plain = to_jsonable({**value, "e": np.datetime64("2026-01-02"), "f": np.array(["NaT"], "M8[s]")}, "value")
    assert plain == {"a": [0, 1], "b": 0.5, "c": True, "d": ["x", None], "e": "2026-01-02", "f": [None]}
    assert [type(item) for item in (plain["a"][0], plain["b"], plain["c"])] == [int, float, bool]


def test_blank_lines_and_a_byte_order_mark_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n\r\n  \n{"prompt": "b"}')
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfprompt,answer\r\na,1\r\n\r\nb,2")
    for name in ("a.jsonl", "a.csv"):
        assert [prompt.content for prompt in read(tmp_path / name)] == ["a", "b"]
