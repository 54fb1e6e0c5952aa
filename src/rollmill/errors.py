"""Every error that rollmill raises on purpose.

    RollmillError                 anything a caller may want to catch
    ├── InputError                the caller's input is wrong; nothing was started, nothing is lost (exit status 2)
    │   ├── JobError              a job field or a command-line option
    │   ├── PromptSourceError     a prompt dataset that cannot be read as asked
    │   ├── PolicyError           a model that cannot be found, or cannot be run
    │   ├── StoreAccessError      a store that cannot be reached, read or written
    │   └── PlanMismatchError     another job already owns this run id
    ├── StorageError              the store holds something unexpected
    │   ├── ObjectMissingError    an object that should be there is not
    │   ├── ObjectExistsError     a create-only object is there already
    │   └── CorruptDataError      bytes, rows or schema differ from what was committed
    ├── GenerationError           an engine could not do its work
    │   └── EngineDiedError       the engine's process ended
    ├── StaleRolloutsError        the newest rollouts are older than the trainer accepts
    ├── RewardError               a reward cannot be built, or returned the wrong shape
    └── RunFailedError            a run ended without publishing; says how to go on

Messages are one line that says what, where, and what to do.
"""

from __future__ import annotations


class RollmillError(Exception):
    """Base of all errors raised on purpose; `exit_status` is what the command line ends with."""

    exit_status = 1


class InputError(RollmillError):
    """The caller's input is wrong; it is found before any model loads."""

    exit_status = 2


class JobError(InputError):
    """A job field or a command-line option is unknown, of the wrong type or out of bounds."""


class PromptSourceError(InputError):
    """A prompt dataset is missing, unreadable, or lacks what the job needs."""


class PolicyError(InputError):
    """A model cannot be found, or is not one that rollmill can run."""


class StoreAccessError(InputError):
    """A store cannot be reached, read or written."""


class PlanMismatchError(InputError):
    """A job differs from the plan that its run id already has."""


class StorageError(RollmillError):
    """The store holds something other than what the protocol promises."""


class ObjectMissingError(StorageError):
    """An object that should be there is not."""


class ObjectExistsError(StorageError):
    """A create-only object is there already."""


class CorruptDataError(StorageError):
    """Bytes, rows or schema differ from what was committed."""


class GenerationError(RollmillError):
    """An engine could not do its work."""


class EngineDiedError(GenerationError):
    """The engine's process ended before it answered."""


class StaleRolloutsError(RollmillError):
    """The newest rollouts are older than the trainer accepts."""


class RewardError(RollmillError):
    """A reward cannot be built, or returned the wrong shape."""


class RunFailedError(RollmillError):
    """A run ended without publishing; the message says what failed and how to go on."""
