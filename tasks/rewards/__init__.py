"""Judging answers: `BaseRewardModel`, one kind of reward a file, and the `Scorer` that a job's rewards become.

How prompts are read lives in `tasks.prompts`; where scores are kept lives in `storage`. To add a kind: a file with a
`RuleReward` (or a `BaseRewardModel`), its fields in `config.py`, and one line in `build.py`. A failure is never a 0:
an item whose reward raises, or returns something that is not a finite number, ends with no reward and with a reason.
"""
