"""From attach to detach: what a target is like afterwards, and what it computes meanwhile."""
