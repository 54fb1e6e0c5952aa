"""Bytes, paths, schema, versions and reading back.

A trainer may import this room alone: it needs torch, pyarrow and s3fs, and imports neither prefect nor transformers.
"""
