"""The host's NVIDIA GPUs through NVML, without a CUDA context. Runs in the host server, once a host."""

from .history import History, Reading
from .nvml import NUMBERS, Gpu, NvmlUnavailable, throttle_reasons
from .visible import visible_devices

__all__ = ["NUMBERS", "Gpu", "History", "NvmlUnavailable", "Reading", "throttle_reasons", "visible_devices"]
