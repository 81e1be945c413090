"""A fake of NVIDIA's driver and of NVRTC that records what they are called with, and nothing about a real GPU.

The driver has two devices, of compute capabilities 9.0 and 7.5. Its functions take what those of the C library take.
"""

from __future__ import annotations

import ctypes
import types
from typing import Any, NamedTuple

ATTRIBUTES = {1: 1024, 8: 49152, 16: 132, 97: 232448}
CAPABILITIES = ((9, 0), (7, 5))


class Launched(NamedTuple):
    """One launch: what `cuLaunchKernelEx` was given."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    stream: int
    parameters: list[bytes]  # with as many bytes each as `Driver.sizes` says
    context: int


class Driver:
    """The functions of ``libcuda`` that tensorops calls."""

    def __init__(self, current: Any) -> None:
        self.current = current  # tells the current device
        self.calls: list[str] = []
        self.launches: list[Launched] = []
        self.loaded: list[tuple[bytes, int]] = []  # images, and the contexts that they were loaded into
        self.sizes: list[int] = []
        self.capture_modes = [0]
        self.pushed: list[int] = []
        self.entered: list[int] = []
        self.statuses: list[int] = []  # of the next launches; then success
        self.names: dict[int, str] = {}

    def __getattribute__(self, name: str) -> Any:
        """Return a function that notes that it is called."""
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or name == "current":
            return found

        def noted(*args: Any) -> int:
            self.calls.append(name)
            return found(*args)

        return noted

    def cuInit(self, flags: int) -> int:
        return 0

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"something happened"
        return 0

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 100 + device.value
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: Any) -> int:
        major, minor = CAPABILITIES[device.value]
        value._obj.value = {75: major, 76: minor, **ATTRIBUTES}[which]
        return 0

    def cuCtxPushCurrent_v2(self, context: Any) -> int:
        self.pushed.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self.pushed.pop()
        return 0

    def cuCtxSetCurrent(self, context: Any) -> int:
        self.entered.append(context.value)
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        mode._obj.value, self.capture_modes[-1] = self.capture_modes[-1], mode._obj.value
        return 0

    def cuModuleLoadData(self, module: Any, image: bytes) -> int:
        assert self.capture_modes[-1] == 2, "a thread that captures a stream could not load this"
        self.loaded.append((image, self.pushed[-1]))
        module._obj.value = len(self.loaded)
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        function._obj.value = 5000 + len(self.names)
        self.names[function._obj.value] = name.decode()
        return 0

    def cuFuncGetAttribute(self, value: Any, which: int, function: Any) -> int:
        value._obj.value = 32
        return 0

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: None) -> int:
        assert extra is None
        config = config._obj
        if self.statuses and (status := self.statuses.pop(0)):
            return status
        values = [ctypes.string_at(at, size) for at, size in zip(parameters, self.sizes, strict=True)]
        grid, block = tuple(config.grid), tuple(config.block)
        name = self.names[function.value]
        self.launches.append(Launched(name, grid, block, config.stream or 0, values, 100 + self.current()))
        assert (config.shared_bytes, config.attributes, config.attribute_count) == (0, None, 0)
        return 0


class Nvrtc:
    """What compiles programs; the image is made of the program's text."""

    version = "99.1"

    def __init__(self) -> None:
        self.compiled: list[tuple[str, str]] = []
        self.error: Exception | None = None

    def compile(self, text: str, architecture: str) -> Any:
        self.compiled.append((text, architecture))
        if self.error is not None:
            raise self.error
        return types.SimpleNamespace(cubin=f"{architecture}: {text}".encode())
