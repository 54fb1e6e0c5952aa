"""Bytes, paths, schema, versions and reading back.

Here: objects (local disk, S3, memory), a run's plan and shards, the ledger, the log of dataset versions, their readers
and `verify`. Not here: making prompts, answers or rewards. A trainer may import this room alone: it needs torch,
pyarrow and s3fs, and imports neither prefect nor transformers.

To add a kind of store, subclass `Objects` and name its protocol in `open_objects`.
"""
