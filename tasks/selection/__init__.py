"""Choosing what to train on: pure functions over tables of answers (RESPONSE_SCHEMA), group by group.

Each takes a table and returns a `Selected` (selected.py): the rows that stay, and every other row counted under a
reason (reasons.py). The result depends neither on the order of the rows nor on chance. A new filter is a function of
that form in the file of its kind, a reason, a field of `SelectionConfig` (config.py) and a line in pipeline.py.
Reading stores and writing training sets lives in `tasks.export`.
"""
