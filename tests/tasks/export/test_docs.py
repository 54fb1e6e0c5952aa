"""docs/datasets.md names every reason, every format and every column of a record."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.tasks.export.records import RECORD_SCHEMAS
from rollmill.tasks.selection.config import SelectionConfig
from rollmill.tasks.selection.reasons import MEANINGS

PAGE = (Path(__file__).parents[3] / "docs" / "datasets.md").read_text()
REFERENCE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()


def test_every_reason_is_told_as_the_card_tells_it_and_in_its_order() -> None:
    rows = [f"| `{reason}` | {meaning} |" for reason, meaning in MEANINGS.items()]
    places = [PAGE.find(row) for row in rows]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("training_format", list(RECORD_SCHEMAS))
def test_every_format_is_told_with_its_columns(training_format: str) -> None:
    assert f"| `{training_format}` |" in PAGE
    if training_format != "table":
        schema = RECORD_SCHEMAS[training_format]  # type: ignore[index]
        wanted = [name for name in schema.names if not name.startswith(("chosen_", "rejected_"))]
        assert [name for name in wanted if f"`{name}`" not in PAGE] == []


def test_every_field_of_a_selection_is_an_option_of_the_command() -> None:
    options = [f"`--{name.replace('_', '-')}" for name in SelectionConfig.model_fields]
    assert [option for option in options if option not in REFERENCE] == []
