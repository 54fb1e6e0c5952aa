"""Running an answer's program in a child process with limits.

It is a guard against accidents: endless loops, memory, forks, full disks, a program that exits before its tests. It is
not a security boundary: the program runs as the same user and can read and write what that user can. For programs
that may be hostile, run rollmill itself inside a container or a virtual machine.
"""
