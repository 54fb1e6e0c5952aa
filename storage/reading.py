"""How a trainer wants a dataset version read: the settings that the runner and the dataset have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rollmill.errors import InputError
from rollmill.storage.assemble import Padding
from rollmill.storage.schema import FURTHER_COLUMNS

NULL_REWARDS = ("require_full", "min_k", "keep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What is in a minibatch, and in which order minibatches come.

    prompts_per_batch    groups in a minibatch of one rank
    rank, world_size     this process's share: of each step's groups, one slice a rank
    seed                 another seed is another order
    drop_last            whether an epoch ends when fewer groups are left than all ranks take in one step
    accept_logprob_mode  the modes that the trainer can use; data of another mode is refused
    null_rewards         which groups with rewards that are null are left out: `require_full` leaves out all of them,
                         `min_k` those with fewer than `min_k` rewards, `keep` none; what is kept shows NaN
    further_columns      FURTHER_COLUMNS that results shall have; refused when a job did not store them
    padding              pad id and sides

    Raises InputError for a value out of bounds.
    """

    prompts_per_batch: int = 8
    rank: int = 0
    world_size: int = 1
    seed: int = 0
    drop_last: bool = False
    accept_logprob_mode: str | Sequence[str] = "processed"
    null_rewards: str = "require_full"
    min_k: int | None = None
    further_columns: Sequence[str] = ()
    padding: Padding = field(default_factory=Padding)

    def __post_init__(self) -> None:
        if self.prompts_per_batch < 1:
            raise InputError(f"prompts_per_batch must be at least 1, got {self.prompts_per_batch}")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise InputError(f"rank must be from 0 to world_size - 1, got rank {self.rank} of {self.world_size}")
        if self.null_rewards not in NULL_REWARDS:
            raise InputError(f"null_rewards must be {', '.join(NULL_REWARDS[:-1])} or keep, got {self.null_rewards!r}")
        if (self.null_rewards == "min_k") != (self.min_k is not None):
            raise InputError("null_rewards='min_k' and a value of min_k go together")
        if unknown := set(self.further_columns) - set(FURTHER_COLUMNS):
            raise InputError(f"further_columns may be {', '.join(FURTHER_COLUMNS)}, got {', '.join(sorted(unknown))}")
        if self.min_k is not None and self.min_k < 1:
            raise InputError(f"min_k must be at least 1, got {self.min_k}")

    @property
    def prompts_per_step(self) -> int:
        """Groups that all ranks take together."""
        return self.prompts_per_batch * self.world_size

    def rewards_needed(self, group_size: int) -> int:
        """Return how many of its rewards a group must have to be read."""
        return {"require_full": group_size, "min_k": self.min_k or 0, "keep": 0}[self.null_rewards]

    def share(self, num_groups: int) -> slice:
        """Return this rank's part of a step's groups; the parts differ by one group at most."""
        start, stop = (num_groups * rank // self.world_size for rank in (self.rank, self.rank + 1))
        return slice(start, stop)

    def split(self, part: int, parts: int) -> Reading:
        """Return the reading of one of several processes that share this rank's work."""
        return replace(self, rank=self.rank * parts + part, world_size=self.world_size * parts)

    def check_mode(self, mode: str, where: str) -> None:
        """Raise InputError when the trainer did not say that it accepts `mode`."""
        accepted = [self.accept_logprob_mode] if isinstance(self.accept_logprob_mode, str) else self.accept_logprob_mode
        if mode not in accepted:
            raise InputError(
                f"{where} has logprob_mode {mode!r}, the trainer accepts {', '.join(map(repr, accepted))}; if its loss "
                f"can use such log-probabilities, say so with accept_logprob_mode"
            )
