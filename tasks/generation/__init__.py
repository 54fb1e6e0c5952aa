"""Sampling G responses a prompt: scheduler, KV cache, attention, sampling, generator, engine processes, policies.

What is sampled lives in `tasks.prompts`; how answers are judged lives in `tasks.rewards`. An engine is anything that
takes `PromptGroup`s and returns `FinishedGroup`s.
"""

from rollmill.tasks.generation.policies import load_policy

__all__ = ["load_policy"]
