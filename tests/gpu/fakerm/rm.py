# SPDX-License-Identifier: Apache-2.0
"""The fake resource manager: clients and objects by handle, and the status of each refusal.

As in the real one, a client belongs to the *open file* on which it was made, whichever process makes the call. This
module decodes structures with the offsets of the open kernel modules. They are written down a second time on purpose
and not taken from rm_abi.h.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tests.gpu.fakerm.gpu import Gpu, Group

OK = 0x00
INSERT_DUPLICATE_NAME = 0x19
INSUFFICIENT_RESOURCES = 0x1A
INSUFFICIENT_PERMISSIONS = 0x1B
INVALID_ARGUMENT = 0x1F
INVALID_CLASS = 0x22
INVALID_CLIENT = 0x23
INVALID_OBJECT_PARENT = 0x36
INVALID_PARAM_STRUCT = 0x3A
INVALID_POINTER = 0x3D
NOT_SUPPORTED = 0x56
OBJECT_NOT_FOUND = 0x57

ROOT, ROOT_CLIENT, DEVICE, SUBDEVICE, CHANNEL_GROUP, CHANNEL = 0x0, 0x41, 0x80, 0x2080, 0xA06C, 0xC86F
COMPUTE, MEMORY = 0xCBC0, 0x40
HEAP_ALLOC_SIZE, HEAP_FREE = 2, 3
GRAPHICS_ENGINES = range(1, 9)
ENGINES = range(1, 30)
COMPUTE_MODES = range(3)
WFI, CILP = 0, 2

# class: the class of its parent, and the size of its parameters
CLASSES = {
    DEVICE: (ROOT_CLIENT, 56),
    SUBDEVICE: (DEVICE, 4),
    CHANNEL_GROUP: (DEVICE, 20),
    CHANNEL: (CHANNEL_GROUP, 368),
    COMPUTE: (CHANNEL, 16),
    MEMORY: (DEVICE, 128),
}
# control: the class of its object, and the sizes of its parameters; the last control has 8 or 9 buffers, by branch
CONTROLS: dict[int, tuple[int, tuple[int, ...]]] = {
    0xA06C0101: (CHANNEL_GROUP, (3,)),
    0xA06C0103: (CHANNEL_GROUP, (8,)),
    0xA06C0104: (CHANNEL_GROUP, (8,)),
    0xA06C0105: (CHANNEL_GROUP, (8,)),
    0xA06C0106: (CHANNEL_GROUP, (4,)),
    0xA06C0102: (CHANNEL_GROUP, (4,)),
    0xA06C0107: (CHANNEL_GROUP, (4,)),
    0xA06F0103: (CHANNEL, (3,)),
    0x2080110B: (SUBDEVICE, (536,)),
    0x20800110: (SUBDEVICE, (132,)),
    0x20801201: (SUBDEVICE, (32,)),
    0x20801210: (SUBDEVICE, (32,)),
    0x20801211: (SUBDEVICE, (104, 112)),
}


SCHEDULE, DISABLE_CHANNELS = 0xA06C0101, 0x2080110B
DISABLE_MAX = 64


# calls about managed memory: offsets of the file, the client, the client's object and the status
UVM = {25: (16, 20, 24, 28), 27: (16, 20, 24, 48), 33: (9248, 9252, 9256, 9260)}


class Owner(Protocol):
    """An open file, and the process that opened it."""

    @property
    def pid(self) -> int: ...


@dataclass
class Entry:
    """An object of a client. `group`: the group on the GPU, for channel groups that run kernels and their channels."""

    class_id: int
    parent: int
    group: Group | None = None


@dataclass
class Client:
    """`maker`: the process that made the client. The client's objects are shared only with this process."""

    owner: Owner
    maker: int = 0
    entries: dict[int, Entry] = field(default_factory=dict)


class ResourceManager:
    """Answers calls. `log` has every requested control and allocation, in order."""

    def __init__(
        self,
        gpu: Gpu,
        *,
        version: str,
        refuse_timeslice: bool = False,
        refuse_wfi: bool = False,
        refuse_disable: bool = False,
        refuse_later_disable: bool = False,
        refuse_cilp: bool = False,
    ) -> None:
        self._gpu = gpu
        self._version = version
        self._refuse_timeslice = refuse_timeslice
        self._refuse_wfi = refuse_wfi
        self._refuse_disable = refuse_disable
        self._refuse_later_disable = refuse_later_disable
        self._refuse_cilp = refuse_cilp
        self._clients: dict[int, Client] = {}
        self._next_client = 0xC1D00001
        self.log: list[dict[str, int | str]] = []

    def close(self, owner: Owner) -> None:
        """The last user of a file closed it: free its clients with all their objects."""
        for handle in [handle for handle, client in self._clients.items() if client.owner == owner]:
            self._free(handle, handle)

    def group(self, owner: Owner, client: int, handle: int) -> Group | None:
        """Return the group that work is submitted to."""
        found = self._clients.get(client)
        entry = found.entries.get(handle) if found and found.owner == owner else None
        return entry.group if entry else None

    def check_version(self, header: bytes) -> tuple[int, bytes]:
        """Like the driver, answer with the driver's version, and with an error if the caller's version differs."""
        theirs = header[8:].split(b"\0", 1)[0].decode(errors="replace")
        ours = self._version.encode().ljust(64, b"\0")
        if len(header) != 72:
            return -1, header
        if theirs != self._version:
            return -1, struct.pack("=II", 0, 0) + ours
        return 0, header[:4] + struct.pack("=I", 1) + ours

    def allocate(
        self, owner: Owner, header: bytes, nested: bytes | None, *, caller: int = 0, has_open: bool = True
    ) -> bytes | None:
        """Return None if the ioctl itself is refused. A device needs a process with an open file of the driver."""
        if len(header) not in (32, 48):
            return None
        client, parent, wanted, class_id = struct.unpack_from("=IIII", header)
        pointer = struct.unpack_from("=Q", header, 16)[0]
        if class_id == DEVICE and not has_open:
            handle, status = 0, INSUFFICIENT_PERMISSIONS
        else:
            handle, status = self._allocate(owner, client, parent, wanted, class_id, nested, has_params=pointer != 0)
        self.log.append({"call": "alloc", "class": class_id, "status": status})
        answer = bytearray(header)
        if status == OK:
            struct.pack_into("=I", answer, 8, handle)
            if class_id in (ROOT, ROOT_CLIENT):
                struct.pack_into("=I", answer, 0, handle)
                self._clients[handle].maker = caller
        struct.pack_into("=I", answer, 28 if len(header) == 32 else 40, status)
        return bytes(answer)

    def _allocate(
        self,
        owner: Owner,
        client_handle: int,
        parent: int,
        wanted: int,
        class_id: int,
        nested: bytes | None,
        *,
        has_params: bool,
    ) -> tuple[int, int]:
        if class_id in (ROOT, ROOT_CLIENT):
            handle = wanted or self._next_client
            if handle in self._clients:
                return 0, INSERT_DUPLICATE_NAME
            self._next_client += 1
            self._clients[handle] = Client(owner=owner, entries={handle: Entry(class_id=ROOT_CLIENT, parent=0)})
            return handle, OK
        client = self._clients.get(client_handle)
        if client is None or client.owner != owner:
            return 0, INVALID_CLIENT
        if class_id not in CLASSES:
            return 0, INVALID_CLASS
        parent_class, size = CLASSES[class_id]
        if parent not in client.entries or client.entries[parent].class_id != parent_class:
            return 0, INVALID_OBJECT_PARENT
        if wanted in client.entries:
            return 0, INSERT_DUPLICATE_NAME
        if has_params and nested is None:
            return 0, INVALID_POINTER
        if nested is None or len(nested) != size:
            return 0, INVALID_PARAM_STRUCT
        group = client.entries[parent].group
        if class_id == CHANNEL_GROUP:
            engine = struct.unpack_from("=I", nested, 12)[0]
            if engine not in ENGINES:
                return 0, INVALID_ARGUMENT
            group = self._gpu.new_group(owner.pid) if engine in GRAPHICS_ENGINES else None
        handle = wanted or max(client.entries) + 1
        client.entries[handle] = Entry(class_id=class_id, parent=parent, group=group)
        return handle, OK

    def free(self, owner: Owner, header: bytes) -> bytes | None:
        if len(header) != 16:
            return None
        client_handle, _, handle, _ = struct.unpack("=IIII", header)
        client = self._clients.get(client_handle)
        status = OK
        if client is None or client.owner != owner:
            status = INVALID_CLIENT
        elif handle not in client.entries:
            status = OBJECT_NOT_FOUND
        else:
            self._free(client_handle, handle)
        return header[:12] + struct.pack("=I", status)

    def heap(self, owner: Owner, header: bytes) -> bytes | None:
        """NVOS32, the older interface to memory: allocates memory, or frees an object of any class like the driver."""
        if len(header) != 184:
            return None
        client_handle, parent, function = struct.unpack_from("=III", header)
        answer = bytearray(header)
        handle, status = struct.unpack_from("=I", header, 44)[0], INVALID_ARGUMENT
        if function == HEAP_FREE:
            freed = self.free(owner, struct.pack("=4I", client_handle, 0, handle, 0)) or bytes(16)
            status = struct.unpack_from("=I", freed, 12)[0]
        elif function == HEAP_ALLOC_SIZE:
            handle, status = self._allocate(owner, client_handle, parent, 0, MEMORY, bytes(128), has_params=True)
            struct.pack_into("=I", answer, 44, handle)
        self.log.append({"call": "heap", "function": function, "status": status})
        struct.pack_into("=I", answer, 20, status)
        return bytes(answer)

    def _free(self, client_handle: int, handle: int) -> None:
        """Free an object with everything below it."""
        client = self._clients[client_handle]
        for child in [child for child, entry in client.entries.items() if entry.parent == handle]:
            if child in client.entries:
                self._free(client_handle, child)
        entry = client.entries.pop(handle)
        if entry.class_id == CHANNEL_GROUP and entry.group is not None:
            self._gpu.remove_group(entry.group)
        if handle == client_handle:
            del self._clients[client_handle]

    def control(self, owner: Owner, header: bytes, nested: bytes | None) -> tuple[bytes, bytes | None] | None:
        if len(header) != 32:
            return None
        client_handle, handle, cmd, _, _, size, _ = struct.unpack("=IIIIQII", header)
        status, params = self._control(owner, client_handle, handle, cmd, size, nested)
        self.log.append(
            {"call": "control", "cmd": cmd, "status": status, "params": (nested or b"")[:536].hex(), "object": handle}
        )
        return header[:28] + struct.pack("=I", status), params

    def _control(
        self, owner: Owner, client_handle: int, handle: int, cmd: int, size: int, nested: bytes | None
    ) -> tuple[int, bytes | None]:
        client = self._clients.get(client_handle)
        if client is None or client.owner != owner:
            return INVALID_CLIENT, nested
        if handle not in client.entries:
            return OBJECT_NOT_FOUND, nested
        entry = client.entries[handle]
        on_class, wanted_sizes = CONTROLS.get(cmd, (None, ()))
        if on_class != entry.class_id:
            return NOT_SUPPORTED, nested
        if size not in wanted_sizes:
            return INVALID_PARAM_STRUCT, nested
        if nested is None or len(nested) != size:
            return INVALID_POINTER, nested
        if cmd == SCHEDULE:
            # Assume the worst: nobody has tested whether this call enables disabled channels.
            if nested[0] and entry.group is not None:
                entry.group.disabled = False
            return OK, nested
        if cmd == DISABLE_CHANNELS:
            groups, status = self.to_disable(client_handle, entry, nested)
            for group in groups:
                self._gpu.disable(group, disable=bool(nested[0]))
            return status, nested
        if cmd == 0xA06C0103:
            return self._set_timeslice(entry, struct.unpack("=Q", nested)[0]), nested
        if cmd == 0xA06C0104:
            return OK, struct.pack("=Q", entry.group.noted_us if entry.group else 0)
        if cmd in (0x20801210, 0x20801211):
            return self._set_preemption(client, cmd, nested), nested
        return OK, nested

    def groups_of(self, owner: Owner, header: bytes, nested: bytes | None) -> list[Group]:
        """The groups whose channels a control call would disable or enable. Empty for other and for refused calls."""
        client_handle, handle, cmd = struct.unpack_from("=III", header)
        client = self._clients.get(client_handle)
        if cmd != DISABLE_CHANNELS or client is None or client.owner != owner or nested is None or len(nested) != 536:
            return []
        entry = client.entries.get(handle)
        if entry is None or entry.class_id != SUBDEVICE:
            return []
        return self.to_disable(client_handle, entry, nested)[0]

    def to_disable(self, client_handle: int, subdevice: Entry, nested: bytes) -> tuple[list[Group], int]:
        """Return the groups, or a status. A subdevice of another client gives a status and no errno."""
        count, event = struct.unpack_from("=I", nested, 4)[0], struct.unpack_from("=Q", nested, 16)[0]
        if self._refuse_disable or (self._refuse_later_disable and client_handle != min(self._clients)):
            return [], NOT_SUPPORTED
        if count > DISABLE_MAX or event:
            return [], INVALID_ARGUMENT
        client, groups = self._clients[client_handle], []
        for index in range(count):
            owner = struct.unpack_from("=I", nested, 24 + 4 * index)[0]
            channel = client.entries.get(struct.unpack_from("=I", nested, 280 + 4 * index)[0])
            if owner != client_handle or channel is None or channel.class_id != CHANNEL:
                return [], INVALID_OBJECT_PARENT
            if client.entries[channel.parent].parent != subdevice.parent:
                return [], INVALID_OBJECT_PARENT
            if channel.group is not None:
                groups.append(channel.group)
        return groups, OK

    def duplicate(self, owner: Owner, header: bytes) -> bytes | None:
        if len(header) != 28:
            return None
        client_handle, _, wanted, source_client, source, _, _ = struct.unpack("=7I", header)
        clients = [self._clients.get(handle) for handle in (client_handle, source_client)]
        status = OK
        if any(client is None or client.owner != owner for client in clients):
            status = INVALID_CLIENT
        elif clients[1] is None or source not in clients[1].entries:
            status = OBJECT_NOT_FOUND
        elif clients[0] is not None:
            clients[0].entries[wanted] = clients[1].entries[source]
        self.log.append({"call": "dup", "object": source, "status": status})
        return header[:24] + struct.pack("=I", status)

    def manage(self, number: int, header: bytes, *, caller: int) -> bytes:
        """Handle a call of `UVM`. Like the real driver, it checks the process that made the client, not the file."""
        file_at, client_at, object_at, status_at = UVM[number]
        client = self._clients.get(struct.unpack_from("=I", header, client_at)[0])
        status = OK
        if client is None or client.maker != caller:
            status = INVALID_CLIENT
        elif struct.unpack_from("=I", header, object_at)[0] not in client.entries:
            status = OBJECT_NOT_FOUND
        file = struct.unpack_from("=i", header, file_at)[0]
        self.log.append({"call": "uvm", "cmd": number, "status": status, "file": file})
        return header[:status_at] + struct.pack("=I", status) + header[status_at + 4 :]

    def _set_timeslice(self, entry: Entry, timeslice_us: int) -> int:
        if self._refuse_timeslice:
            return INSUFFICIENT_PERMISSIONS
        if entry.group is not None:
            self._gpu.set_timeslice(entry.group, timeslice_us)
        return OK

    def _set_preemption(self, client: Client, cmd: int, params: bytes) -> int:
        flags = struct.unpack_from("=I", params)[0]
        offsets = (4, 12) if cmd == 0x20801210 else (8, {104: 84, 112: 92}[len(params)])
        target, mode = (struct.unpack_from("=I", params, offset)[0] for offset in offsets)
        entry = client.entries.get(target)
        if entry is None or entry.class_id not in (CHANNEL, CHANNEL_GROUP):
            return OBJECT_NOT_FOUND
        if not flags & 1:
            return OK
        if mode not in COMPUTE_MODES:
            return INVALID_ARGUMENT
        if (mode == WFI and self._refuse_wfi) or (mode == CILP and self._refuse_cilp):
            return NOT_SUPPORTED
        if entry.group is not None:
            entry.group.unpreemptible = mode == WFI
        return OK
