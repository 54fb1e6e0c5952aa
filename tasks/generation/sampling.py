"""Drawing one token a row from logits, with the log-probability under the very distribution it was drawn from.

Order as in transformers and vLLM: frequency penalty, temperature, top-k, top-p. A draw needs one uniform number a row:
the inverse of the cumulative distribution, found in two levels (sums of blocks, then inside one block), so that the
vocabulary is passed over once and neither sorted nor log-softmaxed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollmill.tasks.generation.row_threads import as_array, has_kernels, run_on_rows

_BLOCK = 256
_TOP_P_CANDIDATES = (256, 4096)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSettings:
    """Sampling settings of each row, on the device of the logits.

    temperature (rows,) float32, 0 is greedy; top_k (rows,) int64, 0 keeps all; top_p (rows,) float32;
    penalty (rows,) float32. The flags say whether any row needs the step, so that the common case skips it.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    penalty: Tensor
    max_top_k: int
    any_greedy: bool
    any_top_p: bool
    any_penalty: bool
    any_kept: bool = False
    any_full: bool = False

    @property
    def plain(self) -> Tensor:
        """Which rows are drawn from the softmax of their logits by temperature and nothing else, (rows,) bool."""
        whole = (self.top_k == 0) & (self.top_p >= 1) & (self.penalty == 0)
        return whole & (self.temperature > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """token_ids (rows,) int64, logprobs (rows,) float32, valid (rows,) bool: False where the logits were not usable.

    Where any row's settings ask for them: `kept`, of each row the ids that had any probability; `full_logprobs` (rows,)
    float32, of the token drawn over the whole vocabulary, before penalty and temperature.
    """

    token_ids: Tensor
    logprobs: Tensor
    valid: Tensor
    kept: list[NDArray[np.int64]] | None = None
    full_logprobs: Tensor | None = None


def draw(logits: Tensor, uniforms: Tensor, settings: RowSettings, recent: Tensor | None = None) -> Draw:
    """Draw one token a row.

    logits (rows, vocab), changed in place; uniforms (rows,) float64 in [0, 1); recent (rows, window) int64, the last
    tokens that the frequency penalty counts, -1 for none. A row is valid unless its largest logit is NaN or infinite,
    or its probabilities do not sum to a finite number. On a CPU, rows of plain settings take a compiled pass, whatever
    the other rows' settings are.
    """
    raw = logits.float().clone() if settings.any_full else None
    drawn = _draw(logits, uniforms, settings, recent)
    return drawn if raw is None else replace(drawn, full_logprobs=full_logprobs(raw, drawn.token_ids))


def _draw(logits: Tensor, uniforms: Tensor, settings: RowSettings, recent: Tensor | None) -> Draw:
    if not has_kernels(logits):
        return _draw_processed(logits, uniforms, settings, recent)
    plain = settings.plain
    drawn = _draw_plain(logits, uniforms, settings)
    if not settings.any_kept and bool(plain.all()):
        return drawn
    other = _draw_processed(logits, uniforms, settings, recent)
    return replace(
        other,
        token_ids=torch.where(plain, drawn.token_ids, other.token_ids),
        logprobs=torch.where(plain, drawn.logprobs, other.logprobs),
        valid=torch.where(plain, drawn.valid, other.valid),
    )


def _draw_plain(logits: Tensor, uniforms: Tensor, settings: RowSettings) -> Draw:
    rows = logits.shape[0]
    token_ids = torch.empty(rows, dtype=torch.int64)
    logprobs, valid = torch.empty(rows), torch.empty(rows, dtype=torch.bool)
    given, results = (logits, uniforms, settings.temperature), (token_ids, logprobs, valid)
    run_on_rows("draw_part", rows, tuple(as_array(tensor) for tensor in (*given, *results)))
    return Draw(token_ids=token_ids, logprobs=logprobs, valid=valid)


def _draw_processed(logits: Tensor, uniforms: Tensor, settings: RowSettings, recent: Tensor | None) -> Draw:
    weights, valid = processed_weights(logits.float(), settings, recent)
    token_ids, totals = _inverse_cdf(weights, uniforms)
    chosen = weights.gather(1, token_ids[:, None])[:, 0]
    return Draw(
        token_ids=token_ids,
        logprobs=(chosen.double().log() - totals.log()).float(),
        valid=valid & torch.isfinite(totals) & (totals > 0),
        kept=_kept(weights) if settings.any_kept else None,
    )


def full_logprobs(logits: Tensor, token_ids: Tensor) -> Tensor:
    """Return each row's log-probability of its token at temperature 1, (rows,), from logits (rows, vocab)."""
    return logits.gather(1, token_ids[:, None])[:, 0] - logits.logsumexp(-1)


def _kept(weights: Tensor) -> list[NDArray[np.int64]]:
    rows, ids = torch.nonzero(weights, as_tuple=True)
    counts = torch.bincount(rows, minlength=weights.shape[0]).cpu().numpy()
    return np.split(ids.cpu().numpy(), np.cumsum(counts)[:-1])


def processed_weights(logits: Tensor, settings: RowSettings, recent: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return unnormalised probabilities (rows, padded vocab), 0 outside the kept set, and which rows are valid (rows,).

    Works in place where it can; the vocabulary is padded to whole blocks. Greedy rows have weight 1 on their first
    largest logit, the limit of temperature to 0.
    """
    logits = _pad_to_blocks(logits)
    if settings.any_penalty:
        assert recent is not None
        _subtract_penalty(logits, recent, settings.penalty)
    greedy = settings.temperature == 0
    top = logits.amax(-1, keepdim=True)
    best = logits.argmax(-1) if settings.any_greedy else None
    weights = logits.sub_(top).div_(torch.where(greedy, 1.0, settings.temperature)[:, None]).exp_()
    if best is not None:
        weights[greedy] = torch.zeros_like(weights[greedy]).scatter_(1, best[greedy][:, None], 1.0)
    if settings.max_top_k:
        _keep_top_k(weights, settings.top_k, settings.max_top_k)
    if settings.any_top_p:
        _keep_top_p(weights, settings.top_p)
    return weights, torch.isfinite(top[:, 0])


def _pad_to_blocks(logits: Tensor) -> Tensor:
    missing = -logits.shape[1] % _BLOCK
    return torch.nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits


def _subtract_penalty(logits: Tensor, recent: Tensor, penalty: Tensor) -> None:
    counted = (recent >= 0).to(logits.dtype) * -penalty[:, None]
    logits.scatter_add_(1, recent.clamp(min=0), counted)


def _keep_top_k(weights: Tensor, top_k: Tensor, largest: int) -> None:
    """Zero what is smaller than a row's k-th largest weight; ties with it are kept, as transformers does."""
    values = weights.topk(min(largest, weights.shape[1]), dim=-1).values
    place = torch.where(top_k > 0, top_k, weights.shape[1]).clamp(max=values.shape[1]) - 1
    threshold = torch.where(top_k > 0, values.gather(1, place[:, None])[:, 0], 0.0)
    weights.masked_fill_(weights < threshold[:, None], 0.0)


def _keep_top_p(weights: Tensor, top_p: Tensor) -> None:
    """Zero what is less likely than the last token that is needed to reach top_p; ties with that token are kept."""
    needed = weights.sum(-1, dtype=torch.float64) * top_p
    threshold = torch.zeros_like(weights[:, 0])
    pending = torch.nonzero(top_p < 1)[:, 0]
    for candidates in (*_TOP_P_CANDIDATES, weights.shape[1]):
        values = weights[pending].topk(min(candidates, weights.shape[1]), dim=-1).values
        before = values.double().cumsum(-1) - values
        last = (before < needed[pending, None]).sum(-1) - 1
        threshold[pending] = values.gather(1, last.clamp(min=0)[:, None])[:, 0]
        pending = pending[last == values.shape[1] - 1]
        if not len(pending):
            break
    weights.masked_fill_(weights < threshold[:, None], 0.0)


def _inverse_cdf(weights: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Return the token at each uniform number, (rows,), and the sum of weights, (rows,) float64."""
    rows = weights.shape[0]
    blocks = weights.view(rows, -1, _BLOCK)
    reached = blocks.sum(-1).double().cumsum(-1)
    totals = reached[:, -1]
    target = _below(uniforms * totals, totals)
    block = (reached <= target[:, None]).sum(-1).clamp(max=blocks.shape[1] - 1)
    inside = blocks[torch.arange(rows, device=weights.device), block].double().cumsum(-1)
    start = torch.where(block > 0, reached.gather(1, (block - 1).clamp(min=0)[:, None])[:, 0], 0.0)
    rest = _below(target - start, inside[:, -1])
    offset = (inside <= rest[:, None]).sum(-1).clamp(max=_BLOCK - 1)
    return block * _BLOCK + offset, totals


def _below(target: Tensor, bound: Tensor) -> Tensor:
    """Rounding must not push a target past the last token that has any probability."""
    return torch.minimum(target, torch.nextafter(bound, torch.zeros_like(bound)))
