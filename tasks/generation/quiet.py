"""Loading models without transformers' progress bars and log lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Show only errors of transformers and the hub client inside, and put back what was shown before."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    verbosity = transformers_logging.get_verbosity()
    transformers_bars = transformers_logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    transformers_logging.set_verbosity(logging.ERROR)
    transformers_logging.disable_progress_bar()
    disable_progress_bars()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if transformers_bars:
            transformers_logging.enable_progress_bar()
        if hub_bars:
            enable_progress_bars()


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, its type when it has none."""
    return " ".join(str(error).split()) or type(error).__name__
