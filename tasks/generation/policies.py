"""Loading the policy: its model, its tokenizer, and the fingerprint of its weights."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollmill.errors import PolicyError
from rollmill.tasks.generation.policy_folders import ACCEPTED, resolve_policy
from rollmill.tasks.generation.quiet import one_line, quiet_transformers

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "check_fingerprint",
    "check_policy",
    "load_config",
    "load_policy",
    "load_tokenizer",
    "policy_fingerprint",
    "resolve_policy",
]

_DTYPES = ("auto", "float32", "bfloat16", "float16")
_NOT_IDENTITY = ("transformers_version", "_name_or_path")
_SAMPLES, _SAMPLE_BYTES = 64, 4096


def load_policy(
    model: str, dtype: str = "auto", device: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return the policy's model, in evaluation mode on `device`, and its tokenizer.

    `dtype` auto takes the checkpoint's own type on a GPU. On a CPU it takes float32: there, answers then do not depend
    on the batch, and few CPUs compute faster in other types. `device` auto takes CUDA where there is any. No code of
    the checkpoint is ever run. Raises PolicyError.
    """
    place = _device(device)
    folder = resolve_policy(model)
    _check_architecture(model, folder)
    network = _load_weights(model, folder, _dtype(dtype, place))
    return network.to(place).eval(), load_tokenizer(model)


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """Return the policy's tokenizer, without fetching or reading any weights; raises PolicyError."""
    from transformers import AutoTokenizer

    folder = resolve_policy(model, weights=False)
    try:
        with quiet_transformers():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
                folder, trust_remote_code=False, local_files_only=True
            )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise PolicyError(f"policy.model {model}: its tokenizer cannot be loaded: {one_line(error)}") from error
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise PolicyError(f"policy.model {model}: there is no tokenizer in {folder}; save it beside the weights")
    return tokenizer


def load_config(model: str) -> PreTrainedConfig:
    """Return the policy's configuration; raises PolicyError."""
    return _config(model, resolve_policy(model, weights=False))


def check_policy(model: str) -> None:
    """Raise PolicyError when the policy cannot be found or is not a causal language model; loads no weights."""
    _check_architecture(model, resolve_policy(model, weights=False))


def policy_fingerprint(model: str) -> str:
    """Return a sha256 of the policy's configuration and weights, in hexadecimal; reads less than 1 MB a file.

    It covers each weight file's name, size, header and 64 samples spread over it, so that a training step changes it
    though names and shapes stay. Where the folder lies and which transformers wrote it do not count.
    """
    folder = resolve_policy(model)
    config = json.loads((folder / "config.json").read_bytes())
    identity = {key: value for key, value in config.items() if key not in _NOT_IDENTITY}
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode())
    for path in _weight_files(model, folder):
        digest.update(f"\n{path.name} {path.stat().st_size}\n".encode())
        for sample in _samples(path):
            digest.update(sample)
    return digest.hexdigest()


def check_fingerprint(model: str, wanted: str) -> None:
    """Raise PolicyError when the policy's files on this machine are not those with the fingerprint that is wanted."""
    if policy_fingerprint(model) != wanted:
        raise PolicyError(
            f"policy.model {model}: the files on {socket.gethostname()} are not those that the run began with; every "
            "machine with an engine needs the same, by a shared folder, an s3:// folder or a copy"
        )


def _samples(path: Path) -> Iterable[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if path.suffix == ".safetensors":
            header_bytes = int.from_bytes(file.read(8), "little")
            yield file.read(min(header_bytes, size))
        for index in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * index // (_SAMPLES - 1))
            yield file.read(_SAMPLE_BYTES)


def _weight_files(model: str, folder: Path) -> list[Path]:
    for pattern in ("*.safetensors", "*.bin"):
        paths = sorted(folder.glob(pattern))
        if paths:
            return paths
    raise PolicyError(f"policy.model {model}: there are no weights (*.safetensors) in {folder}")


def _check_architecture(model: str, folder: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    config = _config(model, folder)
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    names = (known,) if isinstance(known, str) else tuple(known or ())
    built = config.architectures or names
    if not set(built) & set(names):
        shown = ", ".join(built) or f"of type {config.model_type}"
        raise PolicyError(f"policy.model {model} is {shown}, not a causal language model; {ACCEPTED}")


def _config(model: str, folder: Path) -> PreTrainedConfig:
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise PolicyError(f"policy.model {model}: there is no config.json in {folder}; {ACCEPTED}")
    try:
        with quiet_transformers():
            return AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PolicyError(
            f"policy.model {model}: its config.json is not one that transformers itself knows, and a checkpoint's own "
            f"code is never run: {one_line(error)}"
        ) from error


def _load_weights(model: str, folder: Path, dtype: torch.dtype | str) -> PreTrainedModel:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    _weight_files(model, folder)
    network: PreTrainedModel
    report: dict[str, Any]
    try:
        with quiet_transformers():
            network, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, trust_remote_code=False, local_files_only=True, output_loading_info=True
            )
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, ImportError, SafetensorError) as error:
        raise PolicyError(f"policy.model {model}: its weights cannot be loaded: {one_line(error)}") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise PolicyError(f"policy.model {model}: its weights lack {missing[0]} and {len(missing) - 1} others")
    return network


def _dtype(name: str, device: torch.device) -> torch.dtype | str:
    import torch

    if name not in _DTYPES:
        raise PolicyError(f"policy.dtype must be one of {', '.join(_DTYPES)}, got {name}")
    if name == "auto":
        return torch.float32 if device.type == "cpu" else "auto"
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise PolicyError(f"device {name!r} is not one that torch knows: use auto, cpu or cuda:0") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise PolicyError(f"device {name}: this machine has {torch.cuda.device_count()} CUDA devices")
    return device
