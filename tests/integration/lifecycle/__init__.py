"""From attach to detach: the state of a target afterwards, and its results meanwhile."""
