"""Engines that run the bundled policy on vLLM, small enough for a machine of 24 GB that others use too."""

from __future__ import annotations

POLICY = "smollm2-135m"
MAX_SEQ_LEN = 256
ENGINE = {
    "backend": "vllm",
    "devices": "cpu",
    "max_batch_size": 16,
    "max_seq_len": MAX_SEQ_LEN,
    "memory_share": 0.15,
}
