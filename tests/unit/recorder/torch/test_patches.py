"""Attributes that are replaced on one thread while another one restores them all."""

from __future__ import annotations

from probe_agent.recorder.torch.patches import Patches


class Restoring:
    """Something to patch, whose patches are restored just before one takes effect."""

    def __init__(self, patches: Patches) -> None:
        self.patches = patches
        self.call = "original"

    def __setattr__(self, name: str, value: object) -> None:
        if value == "ours":
            self.patches.restore()
        self.__dict__[name] = value


def test_a_patch_that_takes_effect_after_all_are_restored_can_be_restored() -> None:
    patches = Patches()
    owner = Restoring(patches)

    patches.put(owner, "call", "ours")
    assert owner.call == "ours"
    patches.restore()

    assert owner.call == "original"
    assert not patches
