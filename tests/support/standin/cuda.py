"""``cupy.cuda``: devices, and the runtime's questions."""

from __future__ import annotations

from typing import Any

from tests.support.standin import engine, memory
from tests.support.standin.engine import Graph, machine, thread
from tests.support.standin.errors import CUDARuntimeError
from tests.support.standin.streams import Event, Stream, get_current_stream, get_elapsed_time, streams

__all__ = ["Device", "Event", "Graph", "Stream", "get_current_stream", "get_device_id", "get_elapsed_time"]


class Device:
    """A device; ``with`` makes it the current one of the thread."""

    def __init__(self, device: Any = None) -> None:
        if device is None:
            machine.check(thread.device)
        self.id = thread.device if device is None else int(device)
        self._before: list[int] = []

    def __enter__(self) -> Device:
        machine.check(self.id)
        self._before.append(thread.device)
        thread.device = self.id
        return self

    def __exit__(self, *args: object) -> None:
        thread.device = self._before.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __int__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def use(self) -> None:
        """Make it the current device of the thread."""
        machine.check(self.id)
        thread.device = self.id

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        with self:
            for capture in engine.capturing():
                raise capture.refuse()
            engine.synchronise(Stream.null)
            for stream in streams():
                if stream.device_id == self.id:
                    stream._deliver()

    @property
    def compute_capability(self) -> str:
        """Such as ``"80"``."""
        machine.check(self.id)
        return "{}{}".format(*machine.devices[self.id].capability)

    @property
    def pci_bus_id(self) -> str:
        """Where the card sits."""
        return deviceGetPCIBusId(self.id)

    @property
    def mem_info(self) -> tuple[int, int]:
        """Free and total bytes."""
        machine.check(self.id)
        total = machine.devices[self.id].memory
        return total - memory.reserved(self.id), total

    @property
    def attributes(self) -> dict[str, int]:
        """Some of the numbers that CUDA tells about a device."""
        machine.check(self.id)
        major, minor = machine.devices[self.id].capability
        return {
            "ComputeCapabilityMajor": major, "ComputeCapabilityMinor": minor, "MaxThreadsPerBlock": 1024,
            "MaxSharedMemoryPerBlock": 49152, "MultiProcessorCount": 108, "WarpSize": 32, "MaxBlockDimX": 1024,
            "MaxGridDimX": 2147483647, "MaxGridDimY": 65535, "MaxGridDimZ": 65535,
        }  # fmt: skip


def get_device_id() -> int:
    """Return the current device's number."""
    return getDevice()


# -- the runtime -------------------------------------------------------------------------------------------------------
streamCaptureModeGlobal, streamCaptureModeThreadLocal, streamCaptureModeRelaxed = 0, 1, 2
memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
RUNTIME = (
    "CUDARuntimeError", "deviceGetAttribute", "deviceGetPCIBusId", "deviceSynchronize", "driverGetVersion", "getDevice",
    "getDeviceCount", "getDeviceProperties", "memGetInfo", "memcpyAsync", "memcpyDefault", "memcpyDeviceToDevice",
    "memcpyDeviceToHost", "memcpyHostToDevice", "memcpyHostToHost", "memsetAsync", "runtimeGetVersion", "setDevice",
    "streamCaptureModeGlobal", "streamCaptureModeRelaxed", "streamCaptureModeThreadLocal",
)  # fmt: skip
_ATTRIBUTES = {1: "MaxThreadsPerBlock", 8: "MaxSharedMemoryPerBlock", 10: "WarpSize", 16: "MultiProcessorCount",
               75: "ComputeCapabilityMajor", 76: "ComputeCapabilityMinor"}  # fmt: skip


def getDeviceCount() -> int:
    """Return how many devices there are."""
    machine.check()
    return len(machine.devices)


def getDeviceProperties(device: int) -> dict[str, Any]:
    """Return what CUDA knows about a device; bytes for name and UUID."""
    machine.check(device)
    conf = machine.devices[device]
    attributes = Device(device).attributes
    return {
        "name": conf.name.encode(), "uuid": conf.uuid, "totalGlobalMem": conf.memory, "major": conf.capability[0],
        "minor": conf.capability[1], "multiProcessorCount": attributes["MultiProcessorCount"], "warpSize": 32,
        "maxThreadsPerBlock": 1024, "sharedMemPerBlock": 49152, "pciBusID": 1 + device, "pciDomainID": 0,
        "pciDeviceID": 0, "memoryClockRate": 1215000, "memoryBusWidth": 5120, "l2CacheSize": 41943040,
    }  # fmt: skip


def getDevice() -> int:
    """Return the current device of the thread."""
    machine.check(thread.device)
    return thread.device


def setDevice(device: int) -> None:
    """Set the current device of the thread."""
    machine.check(device)
    thread.device = device


def deviceGetPCIBusId(device: int) -> str:
    """Return where a card sits."""
    machine.check(device)
    return machine.devices[device].pci_bus_id


def deviceGetAttribute(attrib: int, device: int) -> int:
    """Return one of CUDA's numbers about a device."""
    if attrib not in _ATTRIBUTES:
        raise CUDARuntimeError(1)
    return Device(device).attributes[_ATTRIBUTES[attrib]]


def deviceSynchronize() -> None:
    """Wait for all work on the current device."""
    Device().synchronize()


def memGetInfo() -> tuple[int, int]:
    """Return the free and the total bytes of the current device."""
    return Device().mem_info


def runtimeGetVersion() -> int:
    """Return the version of the runtime that this CuPy was built for."""
    return machine.runtime_version


def driverGetVersion() -> int:
    """Return the version of CUDA that the driver knows; 0 for no driver."""
    return machine.driver_version


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """Copy ``size`` bytes in the order of a stream; memory of the host must be pinned while that is capturing."""
    host = {memcpyHostToDevice: src, memcpyDeviceToHost: dst}.get(kind)
    with engine._on(_by_handle(stream)):
        memory.copy_at(dst, src, size, host)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    """Set ``size`` bytes in the order of a stream."""
    with engine._on(_by_handle(stream)):
        memory.set_at(ptr, value, size)


def _by_handle(handle: int) -> Stream:
    for stream in streams():
        if stream.ptr == handle:
            found: Stream = stream
            return found
    raise CUDARuntimeError(400)
