"""Names that a debugger would find: the job's frames, what they hold, and the lookup of an expression's names."""
