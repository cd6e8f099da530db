"""Put on PYTHONPATH by `probe run`: starts the recorder, then makes room for the target's own sitecustomize."""

import os
import sys
from contextlib import suppress

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _here]
# Where Probe is installed in the target's environment, its .pth file has been here before.
if os.environ.get("PROBE", "0") not in ("", "0") and "_probe_training" not in sys.modules:
    try:
        # Under a name of its own, and only for now: the target's path need not have Probe on it.
        _package = type(sys)("_probe_activate")
        _package.__path__ = [os.path.dirname(_here)]
        sys.modules["_probe_activate"] = _package
        from _probe_activate.start import start_if_asked  # type: ignore[import-not-found]

        start_if_asked()
    except Exception as _error:  # noqa: BLE001  # at the border: the job must start whatever we do
        with suppress(Exception):
            os.write(sys.stderr.fileno(), f"probe: the recorder is not started: {_error!r}\n".encode())
    # A copy: the recorder's thread may be importing.
    for _name in [name for name in list(sys.modules) if name.partition(".")[0] == "_probe_activate"]:
        del sys.modules[_name]

_ours = sys.modules.pop("sitecustomize")
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
    sys.modules["sitecustomize"] = _ours
