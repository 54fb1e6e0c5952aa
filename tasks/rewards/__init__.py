"""Judging answers: `BaseRewardModel`, one kind of reward a file, and the `Scorer` that a job's rewards become.

How prompts are read lives in `tasks.prompts`; where scores are kept lives in `storage`. To add a kind: a file with a
`RuleReward` (or a `BaseRewardModel`), its fields in one of the `config_*` files and in the union of `config`, and one
line in `build_plain`. A failure is never a 0: an answer whose reward raises, hangs, crashes, or gives something that is
not a finite number ends with no reward and with a reason, and costs no other answer.
"""
