"""`rollmill verify --logprobs` over a finished run: what was sampled passes, other weights do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from builders import save_policy
from typer.testing import CliRunner

from rollmill.cli.main import app


def verify(finished: Any, *options: str) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(app, ["verify", str(finished.folder), "--logprobs", "--json", *options])
    found: dict[str, object] = json.loads(result.stdout.splitlines()[-1])["logprobs"]
    return result.exit_code, found


def test_a_finished_run_is_sound(unbroken: Any) -> None:
    status, found = verify(unbroken, "--sample", "8")
    assert (status, found["same_weights"]) == (0, True)


def test_other_weights_end_with_status_one(unbroken: Any, tmp_path: Path) -> None:
    status, found = verify(unbroken, "--model", str(save_policy(tmp_path / "other", seed=9)))
    assert (status, found["same_weights"]) == (1, False)


def test_a_tolerance_of_nothing_is_exceeded_by_rounding_alone(unbroken: Any) -> None:
    status, _ = verify(unbroken, "--tolerance", "0")
    assert status == 1
