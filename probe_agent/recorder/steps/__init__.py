"""The step: where it ends, what its phases and modules took, and what sampling may cost."""
