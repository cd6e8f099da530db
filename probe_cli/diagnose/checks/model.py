"""The model's mode and what the optimizer holds, by rules of `diagnose`."""

from probe_cli.diagnose.check import Check

__all__ = ["CHECK"]

CHECK = Check(
    "model",
    "Does the model train in training mode, with its parameters in the optimizer and a learning rate?",
    rules=("model-in-eval-mode", "parameters-without-optimizer", "learning-rate-zero"),
    fine="it is in training mode, and the optimizer holds its parameters at a learning rate above 0",
)
