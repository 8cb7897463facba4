# SPDX-License-Identifier: Apache-2.0
"""A thread that plays the kernel on a fake root, for the helper in this process or in another one.

`FakeKernel` updates the sysfs files below its root and answers writes and netlink requests on a Unix socket. Like a
real kernel, it survives the death of a helper. `FakeSysfs` and `FakeControl` are its clients: they read the files
themselves and ask the thread for every change.
"""

import errno
import json
import shutil
import socket
import threading
import time
import uuid as uuids
from dataclasses import replace
from pathlib import Path
from typing import Any

from vgpumgr.control.model import Gpu, Slice, Tenant
from vgpumgr.control.sysfs import HostPaths, Sysfs
from vgpumgr.errors import ControlUnavailableError, refused

GPU = "0000:00:10.0"
OTHER_GPU = "0000:00:11.0"
PERMIT_S = 120
TYPES = {"vgpumgr-mem16m": 16 << 20, "vgpumgr-mem64m": 64 << 20}
MEMORY_BYTES = 256 << 20
_COUNTERS = (
    *("cap_us", "cap_period_us", "burst_us", "error", "error_index", "run_ns", "items"),
    *("dma_bytes", "doorbells", "errors", "resets", "dropped", "queued"),
)


class FakeKernel:
    """Two GPUs with two memory classes, mdevs, permits and tenants. `socket_path`: where its thread listens."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = HostPaths(root)
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.now_s = 0.0
        self.slices: dict[str, Slice] = {}
        self.types: dict[str, str] = {}
        self.permits: dict[str, float] = {}
        self.tenants: dict[tuple[str, str], Tenant] = {}
        self.numbers = 0  # for lives and generations; no number is used twice
        self.log: list[tuple[str, ...]] = []
        self.fail: dict[str, list[int]] = {}
        self.held: set[str] = set()  # slices whose removal waits
        self.loaded = True
        self.loads = True  # whether udev, asked to load the module, finds it
        self.udev = True  # whether udev acts on an event
        self.renews = True  # whether the module knows how to renew a permit
        self.create_late = False  # another process wins the race at the next create
        self._make_host()
        self.socket_path = root / "kernel.sock"
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(self.socket_path))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self.lock:
            self.held.clear()
            for uuid in self.slices:  # wakes removals that wait
                self.slices[uuid] = replace(self.slices[uuid], open=False)
            self.changed.notify_all()
        # Otherwise the next kernel may get the same descriptor number, and our thread would answer in its place.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _make_host(self) -> None:
        self.paths.mdev_bus.mkdir(parents=True)
        (self.root / "sys/bus/mdev/devices").mkdir(parents=True)
        self.paths.boot_id.parent.mkdir(parents=True)
        self.paths.boot_id.write_text(f"{uuids.uuid4()}\n")
        for gpu in (GPU, OTHER_GPU):
            self.paths.gpu(gpu).mkdir(parents=True)
            self._file(self.paths.gpu(gpu) / "attach", "any")
            self._file(self.paths.gpu(gpu) / "abi_version", "2.0")
            self._file(self.paths.gpu(gpu) / "engine", "soft")
            for kind, mem_bytes in TYPES.items():
                directory = self.paths.mdev_types(gpu) / kind
                directory.mkdir(parents=True)
                self._file(directory / "name", kind)
                self._file(directory / "description", f"memory_bytes={mem_bytes}")
                self._file(directory / "device_api", "vfio-pci")
                self._file(directory / "available_instances", "16")
                self._file(directory / "create", "")
            self._file(self.paths.pci_device(gpu) / "uevent", "")
            self._driver(gpu, "vgpumgr")
        self.paths.module.mkdir(parents=True)

    # ---- for tests: changes of the host

    def advance(self, seconds: float) -> None:
        """Increase the age of all permits."""
        with self.lock:
            self.now_s += seconds
            for uuid in list(self.permits):
                self._show_permit(uuid)

    def open(self, uuid: str) -> None:
        """A VMM opens a slice. Raises OSError like open(2)."""
        with self.lock:
            found = self.slices.get(uuid)
            if found is None:
                raise OSError(errno.ENODEV, "gone")
            if (self.paths.gpu(found.gpu) / "attach").read_text() == "permit\n" and not self._permit_s(uuid):
                raise OSError(errno.EPERM, "no permit")
            if found.open:
                raise OSError(errno.EBUSY, "open")
            self.permits.pop(uuid, None)
            self._show_permit(uuid)
            self.slices[uuid] = replace(found, open=True)

    def close_slice(self, uuid: str) -> None:
        """The VMM closes the slice or is killed."""
        with self.lock:
            self.slices[uuid] = replace(self.slices[uuid], open=False)
            self.changed.notify_all()

    def let_go(self, uuid: str) -> None:
        """Continue the removal of a slice that was `held`."""
        with self.lock:
            self.held.discard(uuid)
            self.changed.notify_all()

    def reboot(self) -> None:
        """Reboot: only files on disk remain."""
        with self.lock:
            for uuid in list(self.slices):
                self._forget(uuid)
            self.tenants.clear()
            self.paths.boot_id.write_text(f"{uuids.uuid4()}\n")
            for gpu in (GPU, OTHER_GPU):
                self._file(self.paths.gpu(gpu) / "attach", "any")

    def list_gpus(self, *lines: str) -> None:
        """Write the host's configuration."""
        self.paths.listed_gpus.parent.mkdir(parents=True, exist_ok=True)
        self._file(self.paths.listed_gpus, "\n".join(lines))

    def hand_to(self, gpu: str, driver: str | None) -> None:
        """Unbind a GPU from its present driver, then bind it to `driver` unless that is None."""
        with self.lock:
            self._driver(gpu, driver)

    def unload(self) -> None:
        """Remove the module. Its GPUs then have no driver; GPUs that it adopted keep their vendor's driver."""
        with self.lock:
            for gpu in (GPU, OTHER_GPU):
                link = self.paths.pci_device(gpu) / "driver"
                driver = link.readlink().name if link.is_symlink() else None
                self._driver(gpu, None if driver == "vgpumgr" else driver)
            self.paths.module.rmdir()
            self.loaded = False

    def _driver(self, gpu: str, driver: str | None) -> None:
        link, shared = self.paths.pci_device(gpu) / "driver", self.paths.mdev_bus / gpu
        link.unlink(missing_ok=True)
        shared.unlink(missing_ok=True)
        if driver is not None:
            link.symlink_to(self.root / "sys/bus/pci/drivers" / driver)
        if driver == "vgpumgr":
            self._share(gpu, engine="soft", attach="any")

    def _share(self, gpu: str, *, engine: str, attach: str) -> None:
        self._file(self.paths.gpu(gpu) / "attach", attach)
        self._file(self.paths.gpu(gpu) / "engine", engine)
        (self.paths.mdev_bus / gpu).symlink_to(self.paths.pci_device(gpu))

    def _rules(self, gpu: str) -> None:
        """Do what 60-vgpumgr.rules does when udev reports a new function."""
        if not self.udev:
            return
        listed, settings = (
            path.read_text().splitlines() if path.exists() else []
            for path in (self.paths.listed_gpus, self.paths.agent_settings)
        )
        if gpu not in listed and not any(line.startswith("[gpus") and gpu in line for line in settings):
            return
        if not self.loaded and self.loads:
            self.paths.module.mkdir()
            self.loaded = True
        if gpu in listed and self.loaded and not (self.paths.pci_device(gpu) / "driver").is_symlink():
            self._driver(gpu, "vgpumgr")
            self._file(self.paths.gpu(gpu) / "attach", "permit")

    def permit_s(self, uuid: str) -> int:
        with self.lock:
            return self._permit_s(uuid)

    def state(self) -> dict[str, Any]:
        """Return the visible state of slices and configured tenants, without counters."""
        with self.lock:
            return {
                "slices": {
                    uuid: (found.gpu, self.types[uuid], found.tenant, found.weight, found.cap_us, found.open)
                    for uuid, found in sorted(self.slices.items())
                },
                "groups": {
                    key: (group.weight, group.timeslice_us, group.cap_us)
                    for key, group in sorted(self.tenants.items())
                    if group.configured
                },
            }

    # ---- the thread

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            try:
                request = json.loads(stream.readline())
            except (OSError, ValueError):
                return  # the client was killed before it sent a request
            try:
                answer = {"value": getattr(self, f"do_{request['do']}")(*request["arguments"])}
            except OSError as error:
                answer = {"errno": error.errno, "reason": error.strerror, "unloaded": error.errno == errno.ESRCH}
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                return  # the client was killed

    def _failing(self, name: str) -> None:
        """`fail[name]`: the errno of each of the next calls; 0 makes a call succeed."""
        queue = self.fail.get(name, [])
        number = queue.pop(0) if queue else 0
        if number:
            raise OSError(number, "told to fail")

    # ---- sysfs

    def do_write(self, path: str, text: str) -> None:
        parts = Path(path).parts
        value = text.strip()
        with self.lock:
            self.log.append(("write", parts[-1], parts[-2], value))
            self._failing(parts[-1])
            if parts[-1] == "create":
                self._create(gpu=parts[-4], kind=parts[-2], uuid=value)
            elif parts[-1] == "remove":
                self._remove(parts[-2])
            elif parts[-1] == "permit":
                self._permit(parts[-2], value)
            elif parts[-1] == "uevent":
                self._rules(parts[-2])
            elif parts[-1] == "engine":
                self._set_engine(parts[-3], value)
            elif parts[-1] == "attach":
                self._file(self.root / path, value)
            else:
                raise OSError(errno.EACCES, "read-only")

    def _set_engine(self, gpu: str, engine: str) -> None:
        used = any(found.gpu == gpu for found in self.slices.values())
        if used or any(key[0] == gpu for key in self.tenants):
            raise OSError(errno.EBUSY, "in use")
        self._file(self.paths.gpu(gpu) / "engine", engine)

    def _create(self, *, gpu: str, kind: str, uuid: str) -> None:
        if self.create_late:
            self.create_late = False
            self._create(gpu=gpu, kind=kind, uuid=uuid)
        if uuid in self.slices:
            raise OSError(errno.EEXIST, "exists")
        reserved = sum(TYPES[self.types[each]] for each, found in self.slices.items() if found.gpu == gpu)
        if reserved + TYPES[kind] > MEMORY_BYTES:
            raise OSError(errno.ENOSPC, "memory")
        none: dict[str, Any] = dict.fromkeys(_COUNTERS, 0)
        self.slices[uuid] = Slice(
            gpu=gpu, uuid=uuid, tenant="", weight=1, open=False, scheduled=False, memory_bytes=TYPES[kind], **none
        )
        self.types[uuid] = kind
        directory = self.paths.pci_device(gpu) / uuid
        directory.mkdir()
        (directory / "mdev_type").symlink_to(self.paths.mdev_types(gpu) / kind)
        self._file(directory / "remove", "")
        self.paths.slice(uuid).symlink_to(directory)
        self._show_permit(uuid)

    def _remove(self, uuid: str) -> None:
        while uuid in self.slices and (self.slices[uuid].open or uuid in self.held):
            self.log.append(("waits", uuid))
            self.changed.wait()
        if uuid not in self.slices:
            raise OSError(errno.ENODEV, "gone")
        self._forget(uuid)

    def _forget(self, uuid: str) -> None:
        gpu = self.slices.pop(uuid).gpu
        self.types.pop(uuid)
        self.permits.pop(uuid, None)
        self.paths.slice(uuid).unlink()
        shutil.rmtree(self.paths.pci_device(gpu) / uuid)

    def _permit(self, uuid: str, value: str) -> None:
        if value == "renew" and not self._permit_s(uuid):
            raise OSError(errno.ENOENT, "no permit")
        if value == "renew" and not self.renews:
            raise OSError(errno.EINVAL, "malformed")
        if value in ("1", "renew"):
            self.permits[uuid] = self.now_s + PERMIT_S
        else:
            self.permits.pop(uuid, None)
        self._show_permit(uuid)

    def _permit_s(self, uuid: str) -> int:
        return max(0, int(self.permits.get(uuid, 0) - self.now_s))

    def _show_permit(self, uuid: str) -> None:
        self._file(self.paths.slice(uuid) / "permit", str(self._permit_s(uuid)))

    @staticmethod
    def _file(path: Path, text: str) -> None:
        aside = path.with_name(f".{path.name}")
        aside.write_text(f"{text}\n")
        aside.rename(path)

    # ---- netlink

    def do_adopt_gpu(self, gpu: str, attach: str | None) -> None:
        self._module()
        with self.lock:
            self.log.append(("adopt_gpu", gpu, attach or "any"))
            self._failing("adopt_gpu")
            if not (self.paths.pci_device(gpu) / "driver").is_symlink():
                raise OSError(errno.ENXIO, "no driver is bound to the function")
            if (self.paths.mdev_bus / gpu).exists():
                raise OSError(errno.EEXIST, "the GPU is shared already")
            self._share(gpu, engine="lease", attach=attach or "any")

    def do_gpus(self) -> list[dict[str, Any]]:
        self._module()
        with self.lock:
            return [self._gpu(gpu) for gpu in (GPU, OTHER_GPU) if (self.paths.mdev_bus / gpu).exists()]

    def _gpu(self, gpu: str) -> dict[str, Any]:
        return {
            "name": gpu,
            "engine": (self.paths.gpu(gpu) / "engine").read_text().strip(),
            "memory_total_bytes": MEMORY_BYTES,
            "memory_reserved_bytes": 0,
            "attach": (self.paths.gpu(gpu) / "attach").read_text().strip(),
            "timeslice_min_us": 100,
            "max_chunk_us": 1000,
            "reserve_limit_permille": 750,
            "wall_ns": time.monotonic_ns(),
            "idle_ns": 5,
            "switches": 1,
            "picks": 2,
            "slices": sum(found.gpu == gpu for found in self.slices.values()),
            "tenants": 0,
        }

    def do_slices(self) -> list[dict[str, Any]]:
        self._module()
        with self.lock:
            return [self._slice(found) for found in self.slices.values()]

    def do_slice(self, uuid: str) -> dict[str, Any]:
        self._module()
        with self.lock:
            if uuid not in self.slices:
                raise OSError(errno.ENOENT, "no such slice")
            return self._slice(self.slices[uuid])

    def _slice(self, found: Slice) -> dict[str, Any]:
        group = self.tenants.get((found.gpu, found.tenant))
        return vars(replace(found, scheduled=group is not None and group.configured))

    def do_tenants(self) -> list[dict[str, Any]]:
        self._module()
        with self.lock:
            known = {key: self._tenant(*key) for key in self.tenants}
            for found in self.slices.values():
                if found.tenant:
                    known.setdefault((found.gpu, found.tenant), self._tenant(found.gpu, found.tenant))
            return [{**vars(tenant), "histogram": None} for tenant in known.values()]

    def _tenant(self, gpu: str, name: str) -> Tenant:
        tenant = self.tenants.get((gpu, name), Tenant(gpu=gpu, name=name, configured=False, generation=0, slices=0))
        named = sum((found.gpu, found.tenant) == (gpu, name) for found in self.slices.values())
        return replace(tenant, slices=named)

    def do_set_tenant(self, gpu: str, name: str, settings: dict[str, Any]) -> int:
        self._module()
        with self.lock:
            self.log.append(("set_tenant", gpu, name))
            self._failing("set_tenant")
            if settings.get("timeslice_us", 100) < 100:
                raise OSError(errno.ERANGE, "timeslice-us: too short")
            if settings.get("band") == "fair":
                settings = {"reserve_us": 0, "reserve_period_us": 0, **settings}
            before = self._tenant(gpu, name)
            self.numbers += 1
            lives = {"id": before.id or self.numbers, "generation": self.numbers}
            after = replace(before, configured=True, **lives, **settings)
            self.tenants[gpu, name] = after
            return after.generation

    def do_delete_tenant(self, gpu: str, name: str) -> None:
        self._module()
        with self.lock:
            self.log.append(("delete_tenant", gpu, name))
            if (gpu, name) not in self.tenants:
                raise OSError(errno.ENOENT, "no such tenant")
            if self._tenant(gpu, name).slices:
                raise OSError(errno.EBUSY, "slices still use it")
            del self.tenants[gpu, name]

    def do_set_slice(self, uuid: str, settings: dict[str, Any]) -> None:
        self._module()
        with self.lock:
            self.log.append(("set_slice", uuid))
            self._failing("set_slice")
            if uuid not in self.slices:
                raise OSError(errno.ENOENT, "no such slice")
            found = self.slices[uuid]
            if found.open and settings.get("tenant", found.tenant) != found.tenant:
                raise OSError(errno.EBUSY, "open")
            self.slices[uuid] = replace(found, **settings)

    def _module(self) -> None:
        if not self.loaded:
            raise OSError(errno.ESRCH, "not loaded")


def ask(root: Path, do: str, *arguments: Any) -> Any:
    """Have the kernel of a fake root do something. Raises OSError with the errno that the kernel returns."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(root / "kernel.sock"))
        with connection.makefile("rwb") as stream:
            stream.write(json.dumps({"do": do, "arguments": arguments}).encode() + b"\n")
            stream.flush()
            answer = json.loads(stream.readline())
    if answer.get("unloaded"):
        raise ControlUnavailableError("vgpumgr.ko is not loaded")
    if "errno" in answer:
        raise OSError(answer["errno"], answer["reason"])
    return answer["value"]


class FakeSysfs(Sysfs):
    """Reads the fake root and asks its kernel for each write."""

    def _write(self, operation: str, path: Path, text: str, attribute: str) -> None:
        if not path.exists():
            raise refused(operation=operation, errno=errno.ENOENT, field=attribute)
        try:
            # Resolve any name of a device to the path that the kernel uses for it.
            ask(self.paths.root, "write", str(path.parent.resolve().relative_to(self.paths.root) / path.name), text)
        except OSError as error:
            raise self._refusal(operation, attribute, error) from error


class FakeControl:
    """`vgpumgr.control.netlink.Control` for a fake root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def close(self) -> None:
        pass

    def _ask(self, do: str, *arguments: Any) -> Any:
        try:
            return ask(self.root, do, *arguments)
        except OSError as error:
            raise refused(operation=do, errno=error.errno or 0, reason=error.strerror or "") from error

    def adopt_gpu(self, name: str, *, attach: str | None = None) -> None:
        self._ask("adopt_gpu", name, attach)

    def gpus(self) -> list[Gpu]:
        return [Gpu(**found) for found in self._ask("gpus")]

    def tenant(self, gpu: str, tenant: str) -> Tenant:
        for found in self.tenants(gpu):
            if found.name == tenant:
                return found
        raise refused(operation="tenant-get", errno=errno.ENOENT, field="tenant")

    def tenants(self, gpu: str | None = None) -> list[Tenant]:
        return [Tenant(**found) for found in self._ask("tenants") if gpu in (None, found["gpu"])]

    def slice(self, uuid: str) -> Slice:
        return Slice(**self._ask("slice", uuid))

    def slices(self, gpu: str | None = None) -> list[Slice]:
        return [Slice(**found) for found in self._ask("slices") if gpu in (None, found["gpu"])]

    def set_tenant(self, gpu: str, tenant: str, **settings: int | None) -> int:
        return int(self._ask("set_tenant", gpu, tenant, settings))

    def delete_tenant(self, gpu: str, tenant: str) -> None:
        self._ask("delete_tenant", gpu, tenant)

    def set_slice(self, uuid: str, **settings: Any) -> None:
        self._ask("set_slice", uuid, settings)
