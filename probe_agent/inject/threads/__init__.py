"""Threads of the target as the attaching process works with them: memory, symbols, ptrace, machine code."""
