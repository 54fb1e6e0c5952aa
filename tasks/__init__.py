"""Work done on a machine, as plain functions and classes that know nothing of Prefect.

`prompts` reads and renders, `generation` samples, `rewards` scores. What orders them lives in `flows`; what keeps
their results lives in `storage`.
"""
