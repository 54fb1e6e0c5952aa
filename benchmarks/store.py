"""Measure the store: `python benchmarks/store.py [writing|reading] [options of that part]` (make bench-store).

Without a part, both are measured with their own defaults.
"""

from __future__ import annotations

import importlib
import sys

PARTS = ("writing", "reading")


def main() -> None:
    chosen, arguments = (sys.argv[1:2], sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in PARTS else (PARTS, [])
    for part in chosen:
        importlib.import_module(f"store_{part}").main(arguments)


if __name__ == "__main__":
    main()
