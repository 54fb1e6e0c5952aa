"""Choosing rows by a condition that a user typed: comparisons of named columns, and nothing that could run code."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import AfterValidator

from rollmill.errors import JobError
from rollmill.storage.schema import RESPONSE_SCHEMA
from rollmill.tasks.rewards.fields import job_errors_are_value_errors

COLUMNS = [field.name for field in RESPONSE_SCHEMA if not pa.types.is_list(field.type)]
"""The columns that a condition may name."""

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_JOINS: dict[type[ast.boolop], Callable[[Any, Any], Any]] = {ast.And: pc.and_kleene, ast.Or: pc.or_kleene}


class _RefusedError(Exception):
    """A part of a condition that is not understood."""


@dataclass(frozen=True, slots=True)
class RowFilter:
    """A condition on the columns of a row, such as `reward < 0.5 and finish_reason == "stop"`.

    Values are numbers and quoted text. There are `== != < <= > >=`, `in [...]`, `"text" in column`, `is None` and
    `is not None`, joined by `and`, `or`, `not` and brackets. A comparison with a null is neither true nor false, as in
    SQL, and a row is chosen only when the whole is true. The condition is parsed and never run. Raises JobError for
    one that says anything else.
    """

    text: str

    def __post_init__(self) -> None:
        self.chosen(RESPONSE_SCHEMA.empty_table())

    def chosen(self, table: pa.Table) -> list[bool]:
        """Return for each row (RESPONSE_SCHEMA) whether the condition holds."""
        try:
            mask = _truth(ast.parse(self.text.strip(), mode="eval").body, table)
        except (SyntaxError, ValueError, RecursionError, MemoryError, _RefusedError, pa.ArrowException) as error:
            raise JobError(
                f"where: {self.text!r} is not understood: {' '.join(str(error).split())}; a condition looks like "
                'reward < 0.5 and finish_reason == "stop"'
            ) from error
        chosen: list[bool] = pc.fill_null(mask, False).to_pylist()
        return chosen


def _truth(node: ast.expr, table: pa.Table) -> Any:
    """Return the truth of a condition for every row, as booleans that may be null."""
    match node:
        case ast.BoolOp():
            return reduce(_JOINS[type(node.op)], [_truth(value, table) for value in node.values])
        case ast.UnaryOp(op=ast.Not()):
            return pc.invert(_truth(node.operand, table))
        case ast.Compare():
            sides = [node.left, *node.comparators]
            found = [_compared(*it, table) for it in zip(node.ops, sides, sides[1:], strict=False)]
            return reduce(pc.and_kleene, found)
    raise _RefusedError(f"{ast.unparse(node)} is not a comparison")


def _compared(op: ast.cmpop, left: ast.expr, right: ast.expr, table: pa.Table) -> Any:
    if isinstance(op, (ast.Is, ast.IsNot)):
        if not isinstance(right, ast.Constant) or right.value is not None:
            raise _RefusedError("is and is not compare with None only")
        nulls = pc.is_null(_column(left, table))
        return nulls if isinstance(op, ast.Is) else pc.invert(nulls)
    if isinstance(op, (ast.In, ast.NotIn)):
        found = _contained(left, right, table)
        return found if isinstance(op, ast.In) else pc.invert(found)
    return _COMPARISONS[type(op)](_operand(left, table), _operand(right, table))


def _contained(left: ast.expr, right: ast.expr, table: pa.Table) -> Any:
    if isinstance(right, (ast.List, ast.Tuple)):
        column = _column(left, table)
        values = pa.array([_value(element) for element in right.elts]).cast(column.type)
        return pc.is_in(column, value_set=values)
    text = _value(left)
    if not isinstance(text, str):
        raise _RefusedError(f"{ast.unparse(left)} is no text to look for")
    return pc.match_substring(_column(right, table), text)


def _operand(node: ast.expr, table: pa.Table) -> Any:
    return _column(node, table) if isinstance(node, ast.Name) else pa.scalar(_value(node))


def _column(node: ast.expr, table: pa.Table) -> pa.ChunkedArray:
    if not isinstance(node, ast.Name):
        raise _RefusedError(f"{ast.unparse(node)} is not a column")
    if node.id not in COLUMNS:
        raise _RefusedError(f"there is no column {node.id}, there are {', '.join(COLUMNS)}")
    return table[node.id]


def _value(node: ast.expr) -> str | float | int:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand)
        if not isinstance(value, str):
            return -value
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float)):
        return node.value
    raise _RefusedError(f"{ast.unparse(node)} is not a number or a quoted text")


def _checked(where: str) -> str:
    with job_errors_are_value_errors():
        return where and RowFilter(where).text


Condition = Annotated[str, AfterValidator(_checked)]
"""A field of a job that is the text of a RowFilter."""
