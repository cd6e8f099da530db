"""Eval, stacks and completion against real processes that serve the control socket."""
