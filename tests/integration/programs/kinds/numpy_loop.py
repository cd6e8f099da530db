"""Gradient descent in NumPy: without torch, so none of its steps can be seen.

Holds: it computes the same; torch is not imported into it.
"""

import sys
import time

import numpy
from truth import Truth

STEPS = 40
truth = Truth(STEPS)
random = numpy.random.default_rng(22)
features = random.standard_normal((256, 8))
targets = features @ random.standard_normal(8)
weights = numpy.zeros(8)
for _ in range(STEPS):
    with truth.clock("forward"):
        error = features @ weights - targets
    with truth.clock("backward"):
        gradient = features.T @ error / len(error)
    weights -= 0.1 * gradient
    time.sleep(0.005)
    truth.step(float(error @ error))
print("torch" in sys.modules)
truth.tell(weights)
