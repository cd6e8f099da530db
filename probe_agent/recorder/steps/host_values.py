"""Values of tensors, read from a CPU's memory without an operator of torch: 2 µs for one, 15 to 30 for rows."""

from __future__ import annotations

import sys
from struct import unpack
from typing import Any

__all__ = ["FORMATS", "ROW", "is_readable", "rows_of", "start_of", "value_at"]

#: Of each tensor at most as many rows of as many values, of longer ones as many parts.
MAX_ROWS, ROW, PARTS = 8, 512, 4
FORMATS = {
    "int64": "q", "int32": "i", "int16": "h", "int8": "b", "uint8": "B", "bool": "B",
    "float64": "d", "float32": "f", "float16": "e",
}  # fmt: skip


def is_readable(tensor: Any) -> bool:
    """Return whether a tensor of torch's own class has values that lie in memory as its strides say: none is nested or
    sparse, or stands for another one inside `torch.func`."""
    torch: Any = sys.modules["torch"]
    is_wrapped: Any = getattr(getattr(torch._C, "_functorch", None), "is_functorch_wrapped_tensor", None)
    is_own = tensor.layout is torch.strided and not getattr(tensor, "is_nested", False)
    return is_own and not (is_wrapped and is_wrapped(tensor))


def rows_of(tensor: Any) -> tuple[bytes, ...]:
    """Return the bytes of the first rows of a plain, strided tensor; none of one that is elsewhere."""
    if not tensor.is_cpu or not tensor.numel() or not _is_by_rows(tensor):
        return ()
    import ctypes  # here: torch has loaded it, and a process without torch does not need it

    size = tensor.element_size()
    is_row = tensor.dim() < 2
    num, apart = (1, 0) if is_row else (min(MAX_ROWS, tensor.shape[0]), tensor.stride(0) * size)
    length = tensor.numel() if is_row else tensor.numel() // tensor.shape[0]
    start = tensor.data_ptr()
    if not start or _num_bytes(tensor) < tensor.storage_offset() * size + (num - 1) * apart + length * size:
        return ()  # its storage was released
    most = ROW * MAX_ROWS if is_row else ROW
    parts, part = ([0], length) if length <= most else (range(PARTS), most // PARTS)
    read = [(at * (length - part) // (PARTS - 1) * size, part * size) for at in parts]
    return tuple(
        [
            b"".join([ctypes.string_at(start + row * apart + at, num_bytes) for at, num_bytes in read])
            for row in range(num)
        ]
    )


def start_of(tensor: Any) -> tuple[bytes, ...]:
    """Return the bytes of the first values of a plain, strided tensor of one dimension; none of one elsewhere."""
    if not tensor.is_cpu or not tensor.numel() or not _is_by_rows(tensor):
        return ()
    import ctypes  # as above

    size, num = tensor.element_size(), min(tensor.numel(), MAX_ROWS * ROW)
    start = tensor.data_ptr()
    is_there = start and _num_bytes(tensor) >= (tensor.storage_offset() + num) * size
    return (ctypes.string_at(start, num * size),) if is_there else ()


def value_at(tensor: Any, index: tuple[int, ...]) -> float | None:
    """Return one value of a plain, strided tensor; None of one that is elsewhere, or of another type."""
    kind, size = str(tensor.dtype).partition(".")[2], tensor.element_size()
    if not tensor.is_cpu or (kind not in FORMATS and kind != "bfloat16"):
        return None
    import ctypes  # as above

    at = sum(one * stride for one, stride in zip(index, tensor.stride())) * size
    start = tensor.data_ptr()
    if not start or _num_bytes(tensor) < tensor.storage_offset() * size + at + size:
        return None
    found = ctypes.string_at(start + at, size)
    number: float
    (number,) = unpack("<f", b"\0\0" + found) if kind == "bfloat16" else unpack(FORMATS[kind], found)
    return number


def _num_bytes(tensor: Any) -> int:
    storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
    num: int = storage.nbytes()
    return num


def _is_by_rows(tensor: Any) -> bool:
    """Return whether the values of each row, a part of the first dimension, lie one behind the other in memory."""
    expected, first = 1, min(1, tensor.dim() - 1)
    for size, stride in reversed([*zip(tensor.shape, tensor.stride())][max(0, first) :]):
        if size > 1 and stride != expected:
            return False
        expected *= size
    return True
