"""Reads rollouts with MosaicML `streaming`, for store_reading.py: converts Parquet files to MDS, then reads an epoch
into padded minibatches for every line that comes in.

streaming imports torchvision for datasets that are not used here; where it is not installed an empty one stands in.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

GROUP_SIZE, PROMPTS_PER_BATCH = 8, 8
COLUMNS = {
    "ids": "ndarray:int32",
    "logprobs": "ndarray:float32",
    "lengths": "ndarray:int64",
    "prompt": "ndarray:int32",
    "rewards": "ndarray:float64",
    "texts": "json",
}


def main() -> None:
    folder, *paths = sys.argv[1:]
    _stand_in_for_torchvision()
    from streaming import StreamingDataset

    _convert(folder, paths)
    torch.set_num_threads(1)
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=PROMPTS_PER_BATCH, shuffle_seed=0)
    loader: Any = DataLoader(
        dataset, batch_size=PROMPTS_PER_BATCH, num_workers=2, collate_fn=_padded, persistent_workers=True
    )
    print("ready", flush=True)
    for _ in sys.stdin:
        rows = tokens = 0
        for minibatch in loader:
            rows += minibatch["rewards"].numel()
            tokens += int(minibatch["response_mask"].sum())
        print(json.dumps([rows, tokens]), flush=True)


def _convert(folder: str, paths: list[str]) -> None:
    """Write one sample a group, uncompressed, so that reading has nothing to unpack."""
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns=COLUMNS) as writer:
        for path in paths:
            rows = pq.read_table(path).to_pylist()
            for start in range(0, len(rows), GROUP_SIZE):
                group = rows[start : start + GROUP_SIZE]
                writer.write(
                    {
                        "ids": np.concatenate([row["response_token_ids"] for row in group]).astype(np.int32),
                        "logprobs": np.concatenate([row["logprobs"] for row in group]).astype(np.float32),
                        "lengths": np.array([len(row["logprobs"]) for row in group]),
                        "prompt": np.array(group[0]["prompt_token_ids"], np.int32),
                        "rewards": np.array([row["reward"] for row in group]),
                        "texts": [[group[0][name] for name in ("prompt_id", "prompt_text", "metadata")]]
                        + [[row["response_text"], row["finish_reason"]] for row in group],
                    }
                )


def _padded(groups: list[dict[str, Any]]) -> dict[str, Any]:
    pad = torch.nn.utils.rnn.pad_sequence
    lengths = torch.from_numpy(np.concatenate([group["lengths"] for group in groups]))
    ids, logprobs = (
        pad([part for group in groups for part in torch.tensor(group[name]).split(group["lengths"].tolist())], True)
        for name in ("ids", "logprobs")
    )
    prompts = [torch.tensor(group["prompt"]).flip(0) for group in groups]
    prompt_ids = pad(prompts, batch_first=True).flip(1).long()
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts])
    return {
        "prompts": prompt_ids,
        "prompt_mask": torch.arange(prompt_ids.shape[1]).flip(0) < prompt_lengths[:, None],
        "responses": ids.long(),
        "response_mask": torch.arange(ids.shape[1]) < lengths[:, None],
        "logprobs_old": logprobs,
        "rewards": torch.from_numpy(np.stack([group["rewards"] for group in groups])).float(),
        "texts": [group["texts"] for group in groups],
        "columns": [json.loads(group["texts"][0][2]) for group in groups],
    }


def _stand_in_for_torchvision() -> None:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        importlib.import_module("transformers.feature_extraction_utils")  # looks for the real one, so it comes first
        names = ["torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"]
        for name in [*sys.modules]:
            if name.partition(".")[0] == "torchvision":
                del sys.modules[name]
        sys.modules.update({name: ModuleType(name) for name in names})
        sys.modules["torchvision.datasets"].VisionDataset = object  # type: ignore[attr-defined]
        sys.modules["torchvision.datasets"].CIFAR10 = object  # type: ignore[attr-defined]
        sys.modules["torchvision.transforms.functional"].to_tensor = None  # type: ignore[attr-defined]


if __name__ == "__main__":
    assert Path(sys.argv[1])
    main()
