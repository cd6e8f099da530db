"""The GPUs that a process sees, by CUDA_VISIBLE_DEVICES; torch's own reading of it is the reference."""

from __future__ import annotations

import pytest

from probe_agent.gpu import visible_devices

UUIDS = ["GPU-8932f937-d72c", "GPU-8932aaaa-1111", "GPU-11111111-2222", "GPU-22222222-3333"]

NUMBERED = [
    "", "0", "3,1", "0,1,2,3", "-1", "1,-1,2", "9", "1,9,2", "1,1", "0,2,0", "1gpu2,2ampere", " 1, 2 ", "+1", "x",
    "1,,2", "2,x,1", "NoDevFiles",
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize(
    "variable", [*NUMBERED, "GPU-1111", "GPU-22,GPU-11", "GPU-11,GPU-11", "GPU-11,3", "GPU-8932f,GPU-2"]
)
def test_it_is_read_as_torch_reads_it(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = pytest.importorskip("torch.cuda")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)

    parsed = cuda._parse_visible_devices()
    if parsed and isinstance(parsed[0], str):
        parsed = cuda._transform_uuid_to_ordinals(parsed, UUIDS)
    expected = []
    for number in parsed:
        if number >= len(UUIDS):  # as torch.cuda.device_count cuts it
            break
        expected.append(UUIDS[number])

    assert visible_devices(variable, UUIDS) == expected


def test_without_it_a_process_sees_all() -> None:
    assert visible_devices(None, UUIDS) == UUIDS


def test_a_uuid_that_fits_two_ends_the_list() -> None:
    assert visible_devices("GPU-11,GPU-8932,GPU-22", UUIDS) == [UUIDS[2]]


def test_instances_of_a_gpu_are_known_by_name() -> None:
    assert visible_devices("MIG-aaaa-1,MIG-bbbb-2", UUIDS) == ["MIG-aaaa-1", "MIG-bbbb-2"]
