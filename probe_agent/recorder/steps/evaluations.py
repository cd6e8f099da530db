"""How the job's models are evaluated, for `torch.evaluations`: with gradients or without, in which mode.

An evaluation without gradients is a block of `no_grad` or `inference_mode` of the training loop in which an outermost
module is called (hooks/phases.py). One with gradients begins with `model.eval()`; if a model in evaluation mode is then
called with gradients, and is in training mode again when torch's engine runs next, its graph was made for nothing. A
backward in evaluation mode, such as that of an attack on the inputs, is no evaluation.

Runs on the training thread: a dictionary lookup per block; of a model in training mode a look at 50 layers, and at all
its modules once. Calls no code of the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import ref

from ..names import candidates
from ..torch.seen import Noted

__all__ = ["CALIBRATE", "Evaluations", "OfModel", "is_trained"]

#: Layers that compute something else in training mode, by their class, and how many of a model are remembered.
ACTIVE = re.compile("(?i)drop|batchnorm")
MAX_LAYERS = 50
#: Functions that call a model in training mode without gradients by intention: they average its batch norm anew.
CALIBRATE = "update_bn"


class OfModel:
    """Evaluations of one outermost module; `active` are those in which dropout or batch norm was in training mode."""

    def __init__(self) -> None:
        self.without_gradients = self.active = self.with_gradients = 0
        self._layers: list[Any] | None = None

    def is_active(self, module: Any) -> bool:
        """Return whether dropout or batch norm of the model is in training mode."""
        if not module.training:
            return False
        if self._layers is None:
            self._layers = [ref(layer) for layer in islice(_active_layers(module), MAX_LAYERS)]
        return any(layer is not None and layer.training for layer in (known() for known in self._layers))


class Evaluations:
    """Evaluations seen since the recorder started."""

    def __init__(self) -> None:
        #: By outermost module.
        self.models = Noted(OfModel)
        #: `model.eval()` was called, and no outermost module since.
        self.awaits_call = False
        #: The model that was called with gradients then, if no run of torch's engine has followed.
        self.unsure: Any = None

    def begin(self) -> None:
        """Note a call of `model.eval()`."""
        self.awaits_call, self.unsure = True, None

    def called(self, module: Any) -> None:
        """Note the first call of an outermost module after `begin`, with gradients."""
        self.awaits_call = False
        if not module.training and any(map(is_trained, candidates.members(module))):
            self.unsure = ref(module)

    def called_without_gradients(self, module: Any, is_calibration: bool) -> None:
        """Note the first call of an outermost module in a block without gradients."""
        self.awaits_call, self.unsure = False, None
        known = self.models.of(module)
        known.without_gradients += 1
        if not is_calibration:
            known.active += known.is_active(module)

    def before_backward(self) -> None:
        """Note that torch's engine is about to run while a model is `unsure`."""
        module, self.unsure = self.unsure(), None
        if module is not None and module.training:
            self.models.of(module).with_gradients += 1


def is_trained(layer: Any) -> bool:
    """Return whether a layer has parameters of its own that ask for a gradient."""
    own = list(vars(layer).get("_parameters", {}).values())
    return any(parameter is not None and parameter.requires_grad for parameter in own)


def _active_layers(module: Any) -> Iterator[Any]:
    """Yield the layers of dropout, unless it drops nothing, and of batch norm."""
    for layer in candidates.members(module):
        held = vars(layer)
        if ACTIVE.search(type(layer).__name__) and held.get("p", held.get("drop_prob", 1.0)) != 0:
            yield layer
