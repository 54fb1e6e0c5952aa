"""Where prompt rows come from: one module a source, each with `rows(config)` that yields `SourceRow`s in order.

A source raises PromptSourceError when it cannot be read at all, and yields a row with an error when one row cannot.
What a row means is decided in `tasks.prompts.rows`, the same for every source.
"""
