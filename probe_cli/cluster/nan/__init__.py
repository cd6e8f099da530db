"""Values that are not finite, over the ranks of a job: which tensors, since when, and which module made the first."""

__all__: list[str] = []
