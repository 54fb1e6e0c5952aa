"""What is wrong with a source is said in one line before anything runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3fs
from conftest import S3Place
from datasets import Dataset, DatasetDict
from pydantic import ValidationError

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.prompt import Prompt
from rollmill.tasks.prompts.reading import check_source, read_prompts
from rollmill.tasks.prompts.sources.reasoning_gym_task import create_task


def read(source: str, **fields: Any) -> list[Prompt]:
    config = PromptsConfig(source=source, **fields)
    check_source(config)
    return list(read_prompts(config))


def refusal(source: str, **fields: Any) -> str:
    """Return the message, of one line, with which the source is refused by both checking and reading."""
    config = PromptsConfig(source=source, **fields)
    with pytest.raises(PromptSourceError) as caught:
        check_source(config)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    for suffix in ("jsonl", "csv", "parquet"):
        assert refusal(f"{tmp_path}/no.{suffix}") == f"prompts.source {tmp_path}/no.{suffix}: no such file or bucket"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").mkdir()
    assert "Is a directory" in refusal(f"{tmp_path}/a.jsonl")


def test_an_unknown_kind_of_source_lists_those_known() -> None:
    message = refusal("prompts.txt")
    assert "*.jsonl, *.parquet, *.csv, hf:<name>, reasoning_gym:<name>" in message


def test_a_missing_prompt_column_lists_the_columns_there(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["a"], "id": [1]}), tmp_path / "a.parquet")
    message = refusal(f"{tmp_path}/a.parquet")
    assert "there is no column prompt or messages or input_ids; the columns are question, id" in message
    assert "prompts.prompt_column" in message
    assert "there is no column ask; the columns are question, id" in refusal(
        f"{tmp_path}/a.parquet", prompt_column="ask"
    )


def test_a_source_without_rows_or_with_none_that_is_usable_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    assert refusal(f"{tmp_path}/empty.jsonl").endswith("holds no rows")
    (tmp_path / "image.jsonl").write_bytes(b"\x89PNG\n\x1a\n")
    assert "line 1: it is not UTF-8 text" in refusal(f"{tmp_path}/image.jsonl")
    (tmp_path / "not.parquet").write_bytes(b"PAR0")
    assert "is not a readable Parquet file" in refusal(f"{tmp_path}/not.parquet")


def test_one_bad_row_at_the_beginning_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('oops\n{"prompt": "a"}\n')
    assert [prompt.error is None for prompt in read(f"{tmp_path}/a.jsonl")] == [False, True]


def test_a_csv_header_with_one_name_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt,prompt\na,b\n")
    assert "names the column 'prompt' twice" in refusal(f"{tmp_path}/a.csv")


def test_options_that_a_source_does_not_take_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "a"}\n')
    assert "remove split" in refusal(f"{tmp_path}/a.jsonl", options={"split": "train"})
    assert "remove anon" in refusal(f"{tmp_path}/a.jsonl", storage_options={"anon": True})
    assert "hf: has no option streaming" in refusal(f"hf:{tmp_path}", options={"streaming": True})


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"limit": 0}, "limit"),
        ({"template": "chatml"}, "template"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens"),
        ({"sorce": "b"}, "sorce"),
        ({"template": "raw", "system_prompt": "x"}, "system_prompt needs the chat template"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], place: str) -> None:
    with pytest.raises(ValidationError, match=place):
        PromptsConfig(source="a.jsonl", **fields)


def test_every_field_says_what_it_changes() -> None:
    assert all(field.description for field in PromptsConfig.model_fields.values())


@pytest.fixture
def s3_keys(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put into the environment what the server asks for."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("s3_keys")
def test_a_bucket_is_read_with_keys_from_the_environment(s3: S3Place) -> None:
    files = s3fs.S3FileSystem(**s3.storage_options)
    rows = b"".join(b'{"prompt": "p%d", "answer": "%d"}\n' % (index, index) for index in range(3000))
    files.pipe_file(f"{s3.url}/a.jsonl", rows)
    with files.open(f"{s3.url}/a.parquet", "wb") as file:
        pq.write_table(pa.table({"prompt": [f"p{index}" for index in range(3000)]}), file)
    expected = [f"p{index}" for index in range(3000)]
    for name in ("a.jsonl", "a.parquet"):
        assert [prompt.content for prompt in read(f"{s3.url}/{name}")] == expected


@pytest.mark.usefixtures("s3_keys")
def test_a_bucket_is_read_at_the_address_that_the_job_gives(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    s3fs.S3FileSystem(**s3.storage_options).pipe_file(f"{s3.url}/a.csv", b"prompt,answer\na,1\n")
    [prompt] = read(f"{s3.url}/a.csv", storage_options={"endpoint_url": s3.endpoint_url})
    assert (prompt.content, prompt.columns) == ("a", {"answer": "1"})


@pytest.mark.usefixtures("s3_keys")
def test_what_is_wrong_with_a_bucket_is_said(s3: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no such file or bucket" in refusal(f"{s3.url}/no.jsonl")
    assert "no such file or bucket" in refusal("s3://no-such-bucket/a.jsonl")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert "access is denied" in refusal(f"{s3.url}/no.jsonl")


@pytest.mark.usefixtures("s3_keys")
def test_a_server_that_cannot_be_reached_is_said_soon() -> None:
    before = time.monotonic()
    options = {"endpoint_url": "http://127.0.0.1:9"}
    assert "Could not connect to the endpoint" in refusal("s3://bucket/a.jsonl", storage_options=options)
    assert time.monotonic() - before < 30


@pytest.mark.parametrize("name", ["key", "secret", "token", "aws_secret_access_key"])
def test_credentials_are_refused_where_they_would_be_stored(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} would be stored with the job: put credentials into the env"):
        PromptsConfig(source="s3://bucket/a.jsonl", storage_options={name: "s3cr3t"})


def test_an_address_of_no_known_kind_is_refused() -> None:
    assert "Protocol not known: nowhere" in refusal("nowhere://bucket/a.jsonl")


def test_reasoning_gym_rows_carry_what_the_tasks_scorer_needs() -> None:
    options = {"min_terms": 2, "max_terms": 2}
    prompts = read("reasoning_gym:chain_sum", limit=5, options=options)
    assert len(prompts) == 5
    for prompt in prompts:
        origin = prompt.columns["reasoning_gym"]
        task = create_task(origin["task"], origin["options"])
        entry = task[origin["index"]]
        assert prompt.content == entry["question"] == prompt.columns["question"]
        assert task.score_answer(prompt.columns["answer"], entry) == 1.0
        stored = {name: prompt.columns[name] for name in ("question", "answer", "metadata")}
        assert task.score_answer("nonsense", stored) < 1.0


def test_reasoning_gym_asks_the_same_again_and_something_else_for_another_seed() -> None:
    def contents(**options: Any) -> list[object]:
        return [prompt.content for prompt in read("reasoning_gym:chain_sum", limit=8, options=options)]

    assert contents() == contents() == contents(seed=0)
    assert contents() != contents(seed=100)


def test_reasoning_gym_makes_as_many_as_its_size_without_a_limit() -> None:
    assert len(read("reasoning_gym:chain_sum", options={"size": 3})) == 3


def test_reasoning_gym_mixes_tasks_as_its_composite_does() -> None:
    specs = [{"name": name, "weight": 1, "config": {}} for name in ("chain_sum", "basic_arithmetic")]
    prompts = read("reasoning_gym:composite", limit=20, options={"datasets": specs})
    assert {prompt.columns["metadata"]["source_dataset"] for prompt in prompts} == {"chain_sum", "basic_arithmetic"}


def test_an_unknown_reasoning_gym_task_or_option_is_named() -> None:
    assert "has no task 'chain_sums'; it has chain_sum" in refusal("reasoning_gym:chain_sums")
    assert "chain_sum has no option terms; it has" in refusal("reasoning_gym:chain_sum", options={"terms": 2})
    message = refusal("reasoning_gym:chain_sum", options={"min_terms": 0})
    assert "min_terms must be positive" in message
    assert "chain_sum refuses" in refusal("reasoning_gym:chain_sum", options={"min_terms": "two"})


@pytest.mark.parametrize(("source", "package"), [("hf:x/y", "datasets"), ("reasoning_gym:chain_sum", "reasoning_gym")])
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    source: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    assert "pip install 'rollmill[" in refusal(source)


def test_a_local_dataset_folder_is_read_by_split(tmp_path: Path) -> None:
    for split in ("train", "test"):
        rows = {"prompt": [f"{split} {index}" for index in range(3)], "answer": ["x", "y", "z"]}
        pq.write_table(pa.table(rows), tmp_path / f"{split}.parquet")
    assert [prompt.content for prompt in read(f"hf:{tmp_path}", limit=2)] == ["train 0", "train 1"]
    prompts = read(f"hf:{tmp_path}", options={"split": "test"})
    assert [prompt.content for prompt in prompts] == ["test 0", "test 1", "test 2"]
    assert prompts[2].columns == {"answer": "z"}
    assert "validation" in refusal(f"hf:{tmp_path}", options={"split": "validation"})


def test_a_dataset_saved_to_disk_is_read(tmp_path: Path) -> None:
    chat = [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]
    one = Dataset.from_dict({"prompt": chat})
    one.save_to_disk(str(tmp_path / "one"))
    DatasetDict({"train": one, "test": one.select([1])}).save_to_disk(str(tmp_path / "two"))
    assert [prompt.content for prompt in read(f"hf:{tmp_path / 'one'}")] == chat
    assert [prompt.content for prompt in read(f"hf:{tmp_path / 'two'}", options={"split": "test"})] == chat[1:]
    assert "it has no split dev; it has train, test" in refusal(f"hf:{tmp_path / 'two'}", options={"split": "dev"})


def test_a_hub_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "offline mode is enabled" in refusal("hf:someone/something")
