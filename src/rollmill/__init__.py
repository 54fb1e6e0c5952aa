"""rollmill: workflow-orchestrated batch rollout jobs for reinforcement learning of language models."""
