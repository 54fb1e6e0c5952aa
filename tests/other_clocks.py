"""Processes that believe in another time than this machine: libfaketime shifts what every clock but the monotonic says.

Times of files stay true, as on a shared file system, whose server keeps them.
"""

from __future__ import annotations

import os
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path


def clock_off_by(difference: timedelta) -> dict[str, str]:
    """Return the environment of a process whose clock is ahead by so much; behind, when that is negative."""
    found = find_spec("libfaketime")
    assert found is not None
    assert found.origin is not None
    library = Path(found.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    assert library.is_file()
    return {
        "LD_PRELOAD": os.pathsep.join(filter(None, [str(library), os.environ.get("LD_PRELOAD")])),
        "FAKETIME": f"{difference.total_seconds():+.0f}",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
