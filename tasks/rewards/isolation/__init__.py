"""Rewards in child processes that can be killed: a time and a memory limit for each call, and crashes that cost one.

A fork server is started once a process and imports what rewards need; workers are forked from it in milliseconds, so
that killing one is cheap. What a worker runs is an ordinary `Rater`, built there from its configuration.
"""
