"""Reading a prompt dataset, whatever its source."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rollmill.errors import PromptSourceError
from rollmill.tasks.prompts.config import PromptsConfig
from rollmill.tasks.prompts.content import NO_PROMPT_COLUMN
from rollmill.tasks.prompts.prompt import Prompt
from rollmill.tasks.prompts.rows import to_prompt
from rollmill.tasks.prompts.sources.registry import open_rows
from rollmill.tasks.prompts.unique import UniqueIds

_ROWS_TO_CHECK = 100


def read_prompts(config: PromptsConfig) -> Iterator[Prompt]:
    """Yield the dataset's prompts in their order, in memory that does not grow with their size.

    A row that cannot be used (invalid text or JSON, no prompt, an empty one) is yielded with an `error`, so that the
    others go on. Raises PromptSourceError when the source cannot be read, or an id comes twice.
    """
    ids = UniqueIds()
    for index, prompt in enumerate(_prompts(config)):
        earlier = ids.add(prompt.prompt_id)
        if earlier is not None:
            raise PromptSourceError(
                f"prompt_id {prompt.prompt_id!r} comes twice in {config.source}, at rows {earlier + 1} and "
                f"{index + 1}; ids must be unique: change one, or leave the column out to have ids made"
            )
        yield prompt


def check_source(config: PromptsConfig) -> None:
    """Raise PromptSourceError, in one line, when `read_prompts` could yield nothing that can be asked.

    Looks at the first rows only, up to the first that can be used.
    """
    first_error = None
    for prompt in islice(_prompts(config), _ROWS_TO_CHECK):
        if prompt.error is None:
            return
        first_error = first_error or prompt.error
    if first_error is None:
        raise PromptSourceError(f"prompts.source {config.source} holds no rows")
    raise PromptSourceError(
        f"prompts.source {config.source} has no usable prompt in its first rows; {first_error}{_advice(first_error)}"
    )


def _prompts(config: PromptsConfig) -> Iterator[Prompt]:
    rows = islice(open_rows(config), config.limit)
    return (to_prompt(row, index, config.prompt_column) for index, row in enumerate(rows))


def _advice(error: str) -> str:
    return "; name the one that holds the prompt in prompts.prompt_column" if NO_PROMPT_COLUMN in error else ""
