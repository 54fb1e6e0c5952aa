"""Finding a policy's files and bringing them to a folder on this machine."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock
from platformdirs import user_cache_dir

from rollmill.errors import PolicyError
from rollmill.tasks.generation import smollm2
from rollmill.tasks.generation.quiet import one_line, quiet_transformers

BUNDLED = (smollm2.NAME,)
ACCEPTED = f"use a bundled policy ({', '.join(BUNDLED)}), a Hugging Face hub id, a local folder or an s3:// folder"

_SMALL_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_SAFETENSORS, _PICKLED = ["*.safetensors"], ["*.bin"]
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_SECONDS_TO_ANSWER = 10.0
_CONVERSION = 1
"""Part of the bundled policy's folder name; a change of how it is converted takes another number."""


def resolve_policy(model: str, *, weights: bool = True) -> Path:
    """Return a local folder with the policy's configuration, tokenizer and, if asked, weights.

    `model` is a bundled name, a local folder, an s3:// folder (downloaded once for each content) or a hub id (the
    newest that the hub has; what is in the local hub cache when it cannot be reached). Raises PolicyError.
    """
    if model in BUNDLED:
        return _bundled(weights)
    if "://" in model:
        return _downloaded(model, weights)
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    if model.startswith(("/", ".", "~")) or not _HUB_ID.fullmatch(model):
        raise PolicyError(f"policy.model {model}: there is no such folder; {ACCEPTED}")
    return _from_hub(model, weights)


def cache_folder() -> Path:
    """Return where rollmill keeps files that it can make again: ROLLMILL_CACHE, or the user's cache folder."""
    return Path(os.environ.get("ROLLMILL_CACHE") or user_cache_dir("rollmill")).expanduser()


def build_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Return `folder`, having `write` fill it when it is not there; it appears whole or not at all.

    Processes that start together wait for the first; what a killed one left behind is removed by the next.
    """
    if folder.is_dir():
        return folder
    part = folder.with_name(folder.name + ".part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(folder.name + ".lock")):
            if not folder.is_dir():
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir()
                write(part)
                part.rename(folder)
    except OSError as error:
        raise PolicyError(
            f"the policy's files cannot be kept in {folder.parent}: {one_line(error)}; "
            "the environment variable ROLLMILL_CACHE names another folder"
        ) from error
    return folder


def _bundled(weights: bool) -> Path:
    whole = cache_folder() / f"{smollm2.NAME}-{_CONVERSION}"
    if weights:
        return build_once(whole, _write_bundled)
    if whole.is_dir():
        return whole
    return build_once(whole.with_name(whole.name + "-files"), _write_bundled_files)


def _write_bundled_files(folder: Path) -> None:
    with quiet_transformers():
        smollm2.write_files(folder)


def _write_bundled(folder: Path) -> None:
    with quiet_transformers():
        smollm2.write_files(folder)
        smollm2.write_weights(folder)


def _from_hub(model: str, weights: bool) -> Path:
    from httpx2 import HTTPError
    from huggingface_hub import snapshot_download

    def snapshot(patterns: list[str]) -> Path:
        allowed = [*_SMALL_FILES, *patterns]
        found = snapshot_download(
            model, allow_patterns=allowed, ignore_patterns=["*/*"], etag_timeout=_SECONDS_TO_ANSWER
        )
        return Path(found)

    try:
        with quiet_transformers():
            folder = snapshot(_SAFETENSORS if weights else [])
            if weights and not any(folder.glob("*.safetensors")):
                folder = snapshot(_PICKLED)
    except (OSError, ValueError, HTTPError) as error:
        near = difflib.get_close_matches(model, BUNDLED, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise PolicyError(
            f"policy.model {model}: no bundled policy, no local folder, and not found on the Hugging Face hub or in "
            f"its local cache ({one_line(error)}); {guess}{ACCEPTED}"
        ) from error
    return folder


def _downloaded(url: str, weights: bool) -> Path:
    """Return a local copy of a folder behind a URL; another content of the folder is another copy."""
    from botocore.exceptions import BotoCoreError
    from fsspec.core import url_to_fs

    try:
        filesystem, path = url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
        files = {entry["name"]: entry for entry in filesystem.ls(path, detail=True) if entry["type"] == "file"}
        names = _wanted(files, weights)

        def write(folder: Path) -> None:
            for name in names:
                filesystem.get_file(name, str(folder / Path(name).name))

        listing = [sorted((key, str(value)) for key, value in files[name].items()) for name in names]
        digest = hashlib.sha256(repr([url.rstrip("/"), listing]).encode()).hexdigest()[:16]
        return build_once(cache_folder() / "policies" / f"{Path(path).name}-{digest}", write)
    except FileNotFoundError as error:
        raise PolicyError(f"policy.model {url}: there is no such folder; {ACCEPTED}") from error
    except (OSError, BotoCoreError, ImportError, ValueError) as error:
        raise PolicyError(f"policy.model {url} cannot be read: {one_line(error)}") from error


def _wanted(files: dict[str, Any], weights: bool) -> list[str]:
    """Return the sorted names of those files that make up a policy."""
    patterns = list(_SMALL_FILES)
    if weights:
        patterns += _SAFETENSORS if any(name.endswith(".safetensors") for name in files) else _PICKLED
    return sorted(name for name in files if any(Path(name).match(pattern) for pattern in patterns))
