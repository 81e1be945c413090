"""Launch geometry: how many threads share a row, how many rows a block has; pure functions of metadata."""

from __future__ import annotations

from dataclasses import dataclass

from tensorops.kernels._gpu.plans import Device, Strides

MAX_ROW_DIMS = 3
"""How many axes of rows kernels distinguish, after those have been joined that are one in memory."""

STREAM_BYTES = 8 * 1024 * 1024
"""From this size on, a processor writes results past its caches, as the compiled kernels do."""

_LONGEST_ROW = 2**31 - 1 - 2**16  # kernels count the elements of a row in 32 bits
_MOST_GROUPS = 2**31 - 1  # of a launch
_MOST_THREADS = 256  # for a row
_BLOCK = 128  # threads of a block with several rows
_KEPT = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # vectors: each number is compiled
_CPU_GROUPS = 8  # for each core, so that none waits long for the last


@dataclass(frozen=True, slots=True)
class Rows:
    """The geometry of a launch over rows; the macros of ``native/gpu/dialect.h`` are its fields."""

    threads: int
    rows: int
    vec: int
    kept: int
    each: int  # how many rows each thread computes one after another
    groups: int

    @property
    def defines(self) -> dict[str, int]:
        """The macros that kernels are compiled with."""
        return {"THREADS": self.threads, "ROWS": self.rows, "VEC": self.vec, "KEPT": self.kept}

    @property
    def block(self) -> int:
        """The threads of a block."""
        return self.threads * self.rows


def rows_geometry(
    device: Device, rows: int, length: int, itemsize: int, *, passes: int = 2, dense: bool = True
) -> Rows:
    """Return the geometry for rows of `length` elements.

    On a GPU, vectors have 16 bytes, threads per row grow with the row, and rows that are read more than once, in
    `passes`, are kept in registers while these suffice. On a processor, a thread computes whole rows. `dense` says
    whether the elements of each row are adjacent.
    """
    if device.kind == "cpu":
        vec = 8 if itemsize == 8 else 16
        groups = max(1, min(rows, device.units * _CPU_GROUPS))
        each = -(-rows // groups) if rows else 1
        return Rows(1, 1, vec, 0, each, -(-rows // each))
    vec = max(2, 16 // itemsize)
    values = _values_kept(device, itemsize, dense)
    threads = _threads_per_row(length)
    while threads < _MOST_THREADS and length > threads * values:
        threads *= 2
    threads = min(threads, power_of_two_below(device.max_block))
    per_block = max(1, min(_BLOCK, power_of_two_below(device.max_block)) // threads)
    vectors = max(1, -(-length // (threads * vec)))
    kept = next((n for n in _KEPT if n >= vectors), 0)
    if passes < 2 or kept * vec > values:
        kept = 0
    blocks = -(-rows // per_block)
    each = max(1, -(-blocks // _MOST_GROUPS))
    return Rows(threads, per_block, vec, kept, each, -(-blocks // each))


def _threads_per_row(length: int) -> int:
    for longest, threads in ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128)):
        if length <= longest:
            return threads
    return _MOST_THREADS


def _values_kept(device: Device, itemsize: int, dense: bool) -> int:
    """Return how many values each thread can keep in registers, which have 4 bytes.

    Those of NVIDIA's GPUs, whose threads come in 32, have up to 255 registers. With 128 of them for values, compilers
    for some architectures put others into memory. The address of each element that is alone takes registers as well.
    """
    if not dense:
        return 8 if itemsize == 8 else 16
    if device.lanes != 32:
        return 16 if itemsize == 8 else 32
    return 48 if itemsize == 8 else 96


def power_of_two_below(n: int) -> int:
    """Return the largest power of two that is not above n, at least 1."""
    return 1 << (n.bit_length() - 1)


def refuse_row(length: int) -> str | None:
    """Return why rows of this length are not supported."""
    return f"rows have {length} elements, more than 2**31" if length > _LONGEST_ROW else None


def joined_rows(shape: tuple[int, ...], strides: list[Strides]) -> tuple[list[int], list[list[int]]] | None:
    """Join neighbouring axes of rows that every operand steps through as if they were one.

    Returns the lengths of the axes that are left, outermost first, and the strides of each operand along them, padded
    to `MAX_ROW_DIMS` at the end. ``None`` if more are left.

    `array_api_pyopencl` joins axes for itself: the shims do not import tensorops, and plans for CUDA need no PyOpenCL.
    """
    lengths: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, n in enumerate(shape):
        if n == 1:
            continue
        now = [s[axis] for s in strides]
        if lengths and all(step[-1] == s * n for step, s in zip(steps, now, strict=True)):
            lengths[-1] *= n
            for step, s in zip(steps, now, strict=True):
                step[-1] = s
        else:
            lengths.append(n)
            for step, s in zip(steps, now, strict=True):
                step.append(s)
    if len(lengths) > MAX_ROW_DIMS:
        return None
    return lengths or [1], [step + [0] * (MAX_ROW_DIMS - len(step)) for step in steps]
