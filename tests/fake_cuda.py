"""A fake of NVIDIA's driver and of NVRTC that records what they are called with, and nothing about a real GPU.

The driver has two devices, of compute capabilities 9.0 and 7.5. Its functions take what those of the C library take.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import types
from typing import Any, NamedTuple

import numpy as np

import support
from tensorops.kernels.cuda import _arrays, _driver, _launch

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
    function: int  # which differs between programs, whose kernels may have the same name


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
        self.memory: dict[int, bytes] = {}
        self.blocks: list[Any] = []  # of memory

    def __getattribute__(self, name: str) -> Any:
        """Return a function that notes that it is called."""
        found = object.__getattribute__(self, name)
        if not name.startswith("cu") or name == "current" or isinstance(found, ctypes._CFuncPtr):
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

    def cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        self.blocks.append(ctypes.create_string_buffer(size.value))
        address._obj.value = ctypes.addressof(self.blocks[-1])
        return 0

    def cuStreamCreate(self, stream: Any, flags: int) -> int:
        assert flags == 1, "the stream would wait for one that may be captured"
        stream._obj.value = 800
        return 0

    def cuMemcpyHtoDAsync_v2(self, address: Any, data: bytes, size: Any, stream: Any) -> int:
        assert (stream.value, self.capture_modes[-1], size.value) == (800, 2, len(data))
        ctypes.memmove(address.value, data, len(data))
        self.memory[address.value] = data
        return 0

    def cuStreamSynchronize(self, stream: Any) -> int:
        return 0

    def cuStreamDestroy_v2(self, stream: Any) -> int:
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
        context = 100 + self.current()
        self.launches.append(Launched(name, grid, block, config.stream or 0, values, context, function.value))
        assert (config.shared_bytes, config.attributes, config.attribute_count) == (0, None, 0)
        return 0


class Emulated(Driver):
    """A driver that computes on an emulated GPU: what it loads are programs of `emulation`."""

    def __init__(self, emulation: Any) -> None:
        super().__init__(lambda: 0)
        self.emulation = emulation
        self.programs: dict[int, str] = {}

    def cuModuleGetFunction(self, function: Any, module: Any, name: bytes) -> int:
        status = super().cuModuleGetFunction(function, module, name)
        self.programs[function._obj.value] = self.loaded[module.value - 1][0].decode().partition(": ")[2]
        return status

    def cuLaunchKernelEx(self, config: Any, function: Any, parameters: Any, extra: None) -> int:
        text, config = self.programs[function.value], config._obj
        host, library = self.emulation._host(), ctypes.CDLL(str(self.emulation._built(text)))
        warp = int(text.partition("#define WARP ")[2].split()[0])
        block, groups, local_bytes = config.block[0], config.grid[0], ATTRIBUTES[8]
        error = host.host_launch(library.host_call, parameters, block, warp, groups, local_bytes, 0)
        assert error is None, error.decode()
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


def installed(driver: Any, monkeypatch: Any) -> Any:
    """Put a driver in place of NVIDIA's; nothing is left over from other tests."""
    monkeypatch.setattr(_driver, "library", lambda: driver)
    monkeypatch.setattr(_driver, "device", functools.cache(_driver.Device))
    monkeypatch.setattr(_launch, "_kernel", functools.cache(_launch._kernel.__wrapped__))
    owners: dict[type, Any] = {}
    for module in (_arrays, _launch):
        monkeypatch.setattr(module, "owners", owners)
    return driver


def take_tensors_for_cudas(monkeypatch: Any) -> Any:
    """Let torch's tensors in host memory say that they are on CUDA device 0; return torch."""
    torch = support.require("torch").xp and sys.modules["torch"]
    own = _arrays.arrays_of(torch.Tensor)
    own.current = lambda: 0
    own.stream = lambda device: 9000 + device
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(torch.Tensor, "get_device", lambda x: 0)
    made_there = type(own).maker
    on_host = lambda *args: functools.partial(made_there(*args), device="cpu")  # noqa: E731
    monkeypatch.setattr(type(own), "maker", on_host)
    monkeypatch.setattr(type(own), "put", lambda self, a, device: torch.from_numpy(a))
    return torch


def on_gpu(cupy: Any, a: Any, device: int = 0) -> Any:
    """Return an array of the fake CuPy at a multiple of 16 bytes, as CuPy's pool has it."""
    a = np.asarray(a)
    memory = np.empty(a.nbytes + 16, np.uint8)
    start = -memory.ctypes.data % 16
    with cupy.cuda.Device(device):
        made = cupy.asarray(memory[start : start + a.nbytes].view(a.dtype).reshape(a.shape))
    made[...] = a
    return made
