"""Cost of the recorder for a job on a GPU, and duration of an attach to it: `python -m benchmarks.gpu`."""
