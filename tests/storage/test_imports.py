from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import importlib, pkgutil, sys
import rollmill.storage
for module in pkgutil.iter_modules(rollmill.storage.__path__, "rollmill.storage."):
    importlib.import_module(module.name)
foreign = {"prefect", "transformers", "datasets", "pandas", "pydantic", "rollmill.tasks", "rollmill.flows"}
print(sorted(foreign & set(sys.modules)))
"""


def test_the_whole_room_brings_in_neither_prefect_nor_transformers() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_a_store_can_be_opened_and_checked_without_torch() -> None:
    program = "import sys; import rollmill.storage.verify, rollmill.storage.publish; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"
