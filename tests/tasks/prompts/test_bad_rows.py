"""A row that cannot be used becomes a row with an error, and the others go on."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt, prompts_from_table, prompts_to_table
from rollmill.tasks.prompts.reading import read_prompts
from rollmill.tasks.prompts.sources import csv_file, jsonl_file

BAD_LINES = {
    "not UTF-8 text at byte 12": b'{"prompt": "\xff"}',
    "not valid JSON": b'{"prompt": "a"',
    "JSON list, not an object": b'["a"]',
    "not valid UTF-8 text at character 1": rb'{"prompt": "a\ud800"}',
    "prompt is empty": b'{"prompt": " \\n"}',
    "prompt is null": b'{"prompt": null}',
    "prompt is a int": b'{"prompt": 3}',
    "prompt is a dict": b'{"prompt": {"role": "user"}}',
    "messages is empty": b'{"messages": []}',
    "input_ids holds -1": b'{"input_ids": [1, -1]}',
    "list of int and str": b'{"prompt": ["a", 1]}',
    "list of bool": b'{"prompt": [true]}',
    "prompt[1] has no role": b'{"prompt": [{"role": "user", "content": "a"}, {"content": "b"}]}',
    "no message has any text": b'{"prompt": [{"role": "user", "content": ""}]}',
    "prompt[0].content is a int": b'{"prompt": [{"role": "user", "content": 5}]}',
    "not a text part": b'{"prompt": [{"role": "user", "content": [{"type": "image", "url": "x"}]}]}',
    "there is no column prompt or messages or input_ids; the columns are question": b'{"question": "a"}',
    "prompt_id must be text or a whole number": b'{"prompt": "a", "prompt_id": [1]}',
    "answer[0].x is infinite": b'{"prompt": "a", "answer": [{"x": Infinity}]}',
    "nested too deeply": b'{"prompt": "a", "answer": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "Exceeds the limit": b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}",
}


def read(path: Path, **fields: Any) -> list[Prompt]:
    return list(read_prompts(PromptsConfig(source=str(path), **fields)))


@pytest.mark.parametrize("reason", BAD_LINES)
def test_a_bad_line_costs_only_its_row(reason: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"prompt": "one"}\n' + BAD_LINES[reason] + b'\n{"prompt": "two"}\n')
    one, bad, two = read(tmp_path / "a.jsonl")
    assert (one.content, two.content) == ("one", "two")
    assert bad.content is None
    assert (bad.error or "").startswith("line 2: ")
    assert reason in (bad.error or "")


def test_a_bad_row_keeps_its_id_and_its_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt_id": "q1", "prompt": "", "answer": "4"}\n')
    [prompt] = read(tmp_path / "a.jsonl")
    assert prompt == Prompt(prompt_id="q1", content=None, columns={"answer": "4"}, error="line 1: prompt is empty")


@settings(max_examples=100, deadline=None)
@given(lines=st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line) | st.none()))
def test_no_line_whatever_it_holds_spoils_another(lines: list[bytes | None]) -> None:
    good = b'{"prompt": "good"}'
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(b"".join((good if line is None else line) + b"\n" for line in lines))
        contents = [prompt.content for prompt in read(path)]
    assert contents.count("good") == lines.count(None)


@settings(max_examples=100, deadline=None)
@given(cells=st.lists(st.binary(max_size=20).filter(lambda cell: not {*cell} & {*b'\r\n",'}) | st.none()))
def test_no_csv_cell_whatever_it_holds_spoils_another(cells: list[bytes | None]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(b"prompt,x\n" + b"".join((b"good" if cell is None else cell) + b",1\n" for cell in cells))
        prompts = read(path)
    assert len(prompts) == len(cells)
    assert [prompt.content for prompt in prompts].count("good") == sum(cell in (None, b"good") for cell in cells)


def test_a_line_too_long_to_hold_costs_only_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonl_file, "MAX_LINE_BYTES", 2 << 20)
    long = json.dumps({"prompt": "a" * (5 << 20)})
    (tmp_path / "a.jsonl").write_text(f'{long}\n{{"prompt": "b"}}\n{long}')
    first, second, third = read(tmp_path / "a.jsonl")
    assert (first.error, second.content, third.error) == (
        "line 1: it is longer than 2 MiB",
        "b",
        "line 3: it is longer than 2 MiB",
    )


def test_csv_rows_that_do_not_fit_the_header_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"prompt,answer\na,1\nb\nc,2,3\n\xff,4\nd,5\n")
    prompts = read(tmp_path / "a.csv")
    assert [prompt.content for prompt in prompts] == ["a", None, None, None, "d"]
    assert prompts[1].error == "row 2: it has 1 fields where the header has 2"
    assert prompts[3].error == "row 4: prompt is not valid UTF-8 text at character 0"


def test_a_csv_quote_that_never_closes_is_an_error_and_not_a_full_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_file, "MAX_FIELD_CHARACTERS", 200_000)
    usual = csv.field_size_limit(1_000)
    (tmp_path / "a.csv").write_text('prompt\na\n"' + "b\n" * 200_000)
    try:
        prompts = read(tmp_path / "a.csv", limit=2)
    finally:
        csv.field_size_limit(usual)
    assert prompts[0].content == "a"
    assert "row 2: it is not valid CSV" in (prompts[1].error or "")


def test_parquet_text_that_is_not_utf8_costs_only_its_row(tmp_path: Path) -> None:
    raw = pa.array([b"one", b"\xff", b"two"], pa.binary())
    broken = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"prompt": broken}), tmp_path / "a.parquet")
    one, bad, two = read(tmp_path / "a.parquet")
    assert (one.content, bad.content, two.content) == ("one", None, "two")
    assert "row 2: it holds text that is not UTF-8" in (bad.error or "")


def test_values_nested_at_any_depth_are_kept_or_an_error(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("w") as file:
        file.writelines(f'{{"prompt": "a", "answer": {"[" * depth}{"]" * depth}}}\n' for depth in range(1, 1200, 20))
    prompts = read(tmp_path / "a.jsonl")
    assert prompts[0].error is None
    assert "nested too deeply" in (prompts[-1].error or "")
    assert list(prompts_from_table(prompts_to_table(prompts))) == prompts


def test_a_column_without_a_json_form_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"prompt": ["a", "b"], "image": [b"\xff\xd8", None]}), tmp_path / "a.parquet")
    bad, good = read(tmp_path / "a.parquet")
    assert bad.error == "row 1: image holds bytes that are not UTF-8 text"
    assert (good.content, good.columns) == ("b", {"image": None})
