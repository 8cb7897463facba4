# SPDX-License-Identifier: Apache-2.0
"""The few calls of the CUDA driver API that the loads need, made on the driver's own library: no toolkit, no compiler.

Kernels are PTX text, which the driver compiles for the present GPU (`kernels.ptx`). A process has one context. Only
the thread that created the context may make calls, and other threads while they are attached to it.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

LIBRARY = "libcuda.so.1"
KERNELS = Path(__file__).with_name("kernels.ptx")

_ATTRIBUTE_MULTIPROCESSORS = 16
_EVENT_WITHOUT_TIMING = 2
_STREAM_NON_BLOCKING = 1


class CudaError(Exception):
    """The driver's library is missing (`code` cuda_missing), or refused a call (`code` load_failed)."""

    def __init__(self, code: Literal["cuda_missing", "load_failed"], detail: str) -> None:
        super().__init__(detail)
        self.code = code


class Cuda:
    """The primary context of one device. Raises CudaError, like all calls below."""

    def __init__(self, device: int = 0) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaError("cuda_missing", f"{LIBRARY}: {error}") from error
        self.call("cuInit", ctypes.c_uint(0))
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(device))
        self.device = handle
        self._context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self.call("cuCtxSetCurrent", self._context)

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the calling thread to the context while the body runs."""
        self.call("cuCtxSetCurrent", self._context)
        try:
            yield
        finally:
            self.call("cuCtxSetCurrent", None)

    def call(self, name: str, *arguments: object) -> None:
        """Make one call by name. Raises CudaError with the driver's own word for the error."""
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            word = ctypes.c_char_p()
            self._library.cuGetErrorName(ctypes.c_int(result), ctypes.byref(word))
            code: Literal["cuda_missing", "load_failed"] = "cuda_missing" if name == "cuInit" else "load_failed"
            raise CudaError(code, f"{name}: {(word.value or str(result).encode()).decode()}")

    @property
    def device_name(self) -> str:
        name = ctypes.create_string_buffer(128)
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), self.device)
        return name.value.decode(errors="replace")

    @property
    def multiprocessors(self) -> int:
        count = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(count), ctypes.c_int(_ATTRIBUTE_MULTIPROCESSORS), self.device)
        return count.value

    def function(self, name: str, *, source: Path = KERNELS) -> ctypes.c_void_p:
        """Return a kernel of a PTX file, compiled by the driver."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(source.read_bytes()))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
        return function

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocate GPU memory, filled with zeroes. It is freed when the process ends."""
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        # Launches use streams that do not wait for the stream of this memset.
        self.call("cuCtxSynchronize")
        return pointer

    def read_u64(self, pointer: ctypes.c_uint64) -> int:
        """Return the number at an address of the GPU, after all launched work is done."""
        self.call("cuCtxSynchronize")
        value = ctypes.c_uint64()
        self.call("cuMemcpyDtoH_v2", ctypes.byref(value), pointer, ctypes.c_size_t(8))
        return value.value

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_STREAM_NON_BLOCKING))
        return stream

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_EVENT_WITHOUT_TIMING))
        return event

    def record(self, event: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        self.call("cuEventRecord", event, stream)

    def wait(self, event: ctypes.c_void_p) -> None:
        self.call("cuEventSynchronize", event)


class Kernel:
    """One of the loads with its buffer. `launch` returns at once. A launch always does `rounds` of work."""

    THREADS = 256
    BLOCKS_PER_MULTIPROCESSOR = 4
    MEMORY_BYTES = 1 << 30
    COMPUTE_BYTES = 4096

    def __init__(self, cuda: Cuda, kind: str) -> None:
        self._cuda = cuda
        self._function = cuda.function(f"vgpumgr_{kind}")
        size = self.MEMORY_BYTES if kind == "memory" else self.COMPUTE_BYTES
        self._buffer, self._bytes = cuda.allocate(size), ctypes.c_uint64(size)
        self._blocks = cuda.multiprocessors * self.BLOCKS_PER_MULTIPROCESSOR

    def launch(self, rounds: int, stream: ctypes.c_void_p) -> None:
        values = (self._buffer, self._bytes, ctypes.c_uint32(rounds))
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        grid = (ctypes.c_uint(self._blocks), ctypes.c_uint(1), ctypes.c_uint(1))
        block = (ctypes.c_uint(self.THREADS), ctypes.c_uint(1), ctypes.c_uint(1))
        self._cuda.call("cuLaunchKernel", self._function, *grid, *block, ctypes.c_uint(0), stream, pointers, None)

    def counted(self) -> int:
        """Return the number of launches that the GPU itself counted."""
        return self._cuda.read_u64(self._buffer)
