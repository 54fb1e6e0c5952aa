"""The reward that users write: prompts and answers in, one number an answer out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class BaseRewardModel(ABC):
    """Scores G answers to each of B prompts.

    A subclass may leave out `**columns`, or name only the columns it wants: the caller looks at the signature once and
    passes what it takes. A named column without a default is required, and a job whose prompts lack it is refused
    before anything is generated. Three names are served by rollmill itself, to a `score` that names them:
    `response_token_ids` (B lists of G lists of int), `finish_reasons` (B lists of G strings, stop or length), and
    `prompt_messages` (B lists of chat messages, None where a prompt is none or that is not known).

    `score` is called from several threads at once. When it raises, its batch is halved until the answers that make it
    raise are found, and only those go without a reward; so a score must not depend on what else is in the batch.

        >>> import torch
        >>> class Brevity(BaseRewardModel):
        ...     def score(self, prompts, responses, longest):
        ...         return torch.tensor(
        ...             [[1.0 - len(text) / most for text in group] for group, most in zip(responses, longest)]
        ...         )
        >>> Brevity().score(["Say hi"], [["hi", "hello"]], longest=[10])
        tensor([[0.8000, 0.5000]])
    """

    @abstractmethod
    def score(self, prompts: list[str], responses: list[list[str]], *_: Any, **columns: Any) -> Tensor:
        """Return one finite float for each answer, shape [B, G]. (`*_` lets type checkers accept fewer columns.)

        prompts    B texts, as the policy read them
        responses  B lists of G texts, without special tokens
        columns    the prompt dataset's other columns, each a list of length B; None where a prompt has no such value
        """
