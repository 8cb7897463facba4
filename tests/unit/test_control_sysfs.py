# SPDX-License-Identifier: Apache-2.0
"""`vgpumgr.control.sysfs` on a fake root; a thread plays the kernel and handles one system call at a time."""

import errno
import os
import queue
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpumgr.control import sysfs
from vgpumgr.control.sysfs import HostPaths, Sysfs
from vgpumgr.errors import (
    AlreadyExistsError,
    BusyError,
    ControlUnavailableError,
    InvalidFieldError,
    NoCapacityError,
    NotFoundError,
    OutOfRangeError,
    RefusedError,
    UnknownGpuError,
)

GPU = "0000:00:10.0"
UUID = "c0ffee00-0000-4000-8000-000000000001"
OTHER = "c0ffee00-0000-4000-8000-000000000002"


class FakeKernel(threading.Thread):
    """Handles writes to sysfs like mdev and PCI. A removed device keeps its UUID for `linger` more creations."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.paths = HostPaths(root)
        self.calls: queue.Queue[tuple[Path, str, queue.Queue[int]] | None] = queue.Queue()
        self.available = 2
        self.linger = 0
        self.removed_once: set[str] = set()
        self.busy = threading.Event()
        device = self.paths.pci_device(GPU)
        device.mkdir(parents=True)
        (device / "driver_override").write_text("(null)\n")
        self.paths.pci_probe.write_text("")
        self.paths.mdev_bus.mkdir(parents=True)
        (root / "sys/bus/mdev/devices").mkdir(parents=True)
        for driver in ("vgpumgr", "other"):
            directory = self.driver_directory(driver)
            directory.mkdir(parents=True)
            (directory / "unbind").write_text("")

    def driver_directory(self, name: str) -> Path:
        return self.paths.root / "sys/bus/pci/drivers" / name

    def attach(self, driver: str) -> None:
        device = self.paths.pci_device(GPU)
        (device / "driver").symlink_to(self.driver_directory(driver))
        if driver != "vgpumgr":
            return
        self.paths.gpu(GPU).mkdir()
        (self.paths.gpu(GPU) / "attach").write_text("any\n")
        (self.paths.mdev_bus / GPU).symlink_to(device)
        directory = self.paths.mdev_types(GPU) / "vgpumgr-mem16m"
        directory.mkdir(parents=True)
        for name, value in {
            "name": "vgpumgr slice, 16 MiB",
            "description": "memory_bytes=16777216",
            "device_api": "vfio-pci",
            "available_instances": self.available,
            "create": "",
        }.items():
            (directory / name).write_text(f"{value}\n")

    def detach(self) -> None:
        device = self.paths.pci_device(GPU)
        (device / "driver").unlink()
        (self.paths.mdev_bus / GPU).unlink(missing_ok=True)
        for directory in (self.paths.gpu(GPU), self.paths.mdev_types(GPU)):
            if directory.exists():
                shutil.rmtree(directory)

    def run(self) -> None:
        while call := self.calls.get():
            path, text, answer = call
            answer.put(self.written(path, text.removesuffix("\n")))

    def written(self, path: Path, text: str) -> int:
        """Return 0 or an errno."""
        if not path.exists():
            return errno.ENOENT
        match path.name:
            case "create":
                return self.create(text)
            case "remove":
                return self.remove(path.parent)
            case "unbind":
                self.detach()
            case "drivers_probe":
                override = (self.paths.pci_device(GPU) / "driver_override").read_text().strip()
                if override in ("vgpumgr", "other"):
                    self.attach(override)
            case "weight" if (path.parent / "tenant").read_text().strip():
                return errno.EBUSY
            case "weight" if not 1 <= int(text) <= 10000:
                return errno.ERANGE
            case "permit":
                path.write_text("120\n" if text == "1" else "0\n")
            case _:
                path.write_text(f"{text}\n")
        return 0

    def create(self, uuid: str) -> int:
        directory = self.paths.slice(uuid)
        if directory.exists():
            return errno.EEXIST
        if uuid in self.removed_once and self.linger:
            self.linger -= 1
            return errno.EEXIST
        if not self.available:
            return errno.ENOSPC
        self.available -= 1
        real = self.paths.pci_device(GPU) / uuid
        real.mkdir()
        directory.symlink_to(real)
        for name, value in {"tenant": "", "weight": "1", "permit": "0", "remove": ""}.items():
            (real / name).write_text(f"{value}\n")
        return 0

    def remove(self, directory: Path) -> int:
        self.busy.wait(0.01)
        real = directory.resolve()
        directory.unlink()
        shutil.rmtree(real)
        self.removed_once.add(real.name)
        self.available += 1
        return 0

    def write(self, path: Path, text: str) -> None:
        """Make the system call of `sysfs.write_file`."""
        answer: queue.Queue[int] = queue.Queue()
        self.calls.put((path, text, answer))
        number = answer.get(timeout=10)
        if number:
            raise OSError(number, os.strerror(number), str(path))


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    fake = FakeKernel(tmp_path)
    monkeypatch.setattr(sysfs, "write_file", fake.write)
    fake.start()
    yield fake
    fake.calls.put(None)
    fake.join(timeout=10)


@pytest.fixture
def host(kernel: FakeKernel) -> Sysfs:
    found = Sysfs(kernel.paths)
    found.bind(GPU)
    return found


def test_a_gpu_is_listed_while_it_is_bound(kernel: FakeKernel) -> None:
    host = Sysfs(kernel.paths)
    assert host.gpus() == []
    host.bind(GPU)
    assert host.gpus() == [GPU]
    assert host.driver(GPU) == "vgpumgr"
    host.unbind(GPU)
    assert host.gpus() == []
    assert host.driver(GPU) is None
    assert (kernel.paths.pci_device(GPU) / "driver_override").read_text() == "\n"


def test_binding_takes_the_function_from_another_driver(kernel: FakeKernel) -> None:
    kernel.attach("other")
    host = Sysfs(kernel.paths)
    host.bind(GPU)
    assert host.driver(GPU) == "vgpumgr"


def test_binding_to_a_driver_that_does_not_take_it_is_refused(kernel: FakeKernel) -> None:
    with pytest.raises(UnknownGpuError, match="did not accept it"):
        Sysfs(kernel.paths).bind(GPU, "absent")


def test_binding_an_address_without_a_function_is_refused(kernel: FakeKernel) -> None:
    with pytest.raises(UnknownGpuError, match="no such PCI function"):
        Sysfs(kernel.paths).bind("0000:00:1f.0")


def test_a_host_without_mdev_says_so(tmp_path: Path) -> None:
    with pytest.raises(ControlUnavailableError, match=r"mdev\.ko"):
        Sysfs(HostPaths(tmp_path)).gpus()


def test_memory_classes_are_read(host: Sysfs) -> None:
    (found,) = host.types(GPU)
    assert (found.id, found.device_api, found.available) == ("vgpumgr-mem16m", "vfio-pci", 2)
    assert found.name == "vgpumgr slice, 16 MiB"


@pytest.mark.parametrize("type_id", ["mem16m", "vgpumgr-mem16m"])
def test_a_slice_is_created_and_removed(host: Sysfs, type_id: str) -> None:
    host.create(GPU, type_id, UUID.upper())
    assert host.exists(UUID)
    assert host.slices(GPU) == [UUID]
    host.remove(UUID)
    assert not host.exists(UUID)
    assert host.slices(GPU) == []


def test_creation_waits_for_a_uuid_that_is_being_given_up(host: Sysfs, kernel: FakeKernel) -> None:
    host.create(GPU, "mem16m", UUID)
    host.remove(UUID)
    kernel.linger = 3
    host.create(GPU, "mem16m", UUID)
    assert host.exists(UUID)
    assert kernel.linger == 0


def test_creation_gives_up_on_a_uuid_that_stays_taken(
    host: Sysfs, kernel: FakeKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysfs, "_CREATE_LIMIT_S", 0.1)
    kernel.removed_once.add(UUID)
    kernel.linger = 1000
    with pytest.raises(AlreadyExistsError) as caught:
        host.create(GPU, "mem16m", UUID)
    assert caught.value.field == "uuid"


def test_a_slice_that_exists_is_told_at_once(host: Sysfs) -> None:
    host.create(GPU, "mem16m", UUID)
    with pytest.raises(AlreadyExistsError):
        host.create(GPU, "mem16m", UUID)


def test_creation_beyond_the_memory_is_refused(host: Sysfs, kernel: FakeKernel) -> None:
    kernel.available = 0
    with pytest.raises(NoCapacityError):
        host.create(GPU, "mem16m", UUID)


def test_creation_of_an_unknown_type_names_it(host: Sysfs) -> None:
    with pytest.raises(NotFoundError) as caught:
        host.create(GPU, "mem1t", UUID)
    assert caught.value.field == "type"


def test_creation_on_an_unknown_gpu_names_it(host: Sysfs) -> None:
    with pytest.raises(UnknownGpuError) as caught:
        host.create("0000:00:1f.0", "mem16m", UUID)
    assert caught.value.field == "gpu"


def test_removal_blocks_its_caller_until_the_kernel_lets_go(host: Sysfs, kernel: FakeKernel) -> None:
    host.create(GPU, "mem16m", UUID)
    remover = threading.Thread(target=host.remove, args=(UUID,))
    remover.start()
    kernel.busy.set()
    remover.join(timeout=10)
    assert not host.exists(UUID)


def test_attributes_are_written_and_read(host: Sysfs) -> None:
    host.create(GPU, "mem16m", UUID)
    host.write(UUID, "weight", 300)
    host.write(UUID, "tenant", "blue")
    assert host.read(UUID, "weight") == "300"
    assert host.read(UUID, "tenant") == "blue"
    host.write_gpu(GPU, "attach", "permit")
    assert host.read_gpu(GPU, "attach") == "permit"


def test_a_refused_attribute_is_named_and_unchanged(host: Sysfs) -> None:
    host.create(GPU, "mem16m", UUID)
    with pytest.raises(OutOfRangeError) as out_of_range:
        host.write(UUID, "weight", 0)
    assert (out_of_range.value.field, out_of_range.value.errno) == ("weight", errno.ERANGE)
    host.write(UUID, "tenant", "blue")
    with pytest.raises(BusyError) as busy:
        host.write(UUID, "weight", 5)
    assert str(busy.value) == "write weight: weight: Device or resource busy [EBUSY]"
    assert host.read(UUID, "weight") == "1"


def test_a_permit_is_granted_and_withdrawn(host: Sysfs) -> None:
    host.create(GPU, "mem16m", UUID)
    host.grant(UUID)
    assert host.permit_s(UUID) == 120
    host.withdraw(UUID)
    assert host.permit_s(UUID) == 0


def test_an_unknown_slice_is_not_found(host: Sysfs) -> None:
    for act in (lambda: host.read(OTHER, "weight"), lambda: host.remove(OTHER), lambda: host.grant(OTHER)):
        with pytest.raises(NotFoundError):
            act()


@pytest.mark.parametrize("name", ["../x", "", "0000:00:10.8", "0000:00:10.0/.."])
def test_names_never_leave_their_directory(host: Sysfs, name: str) -> None:
    for act in (
        lambda: host.bind(name),
        lambda: host.read(name, "weight"),
        lambda: host.create(GPU, f"../{name}", UUID),
    ):
        with pytest.raises(InvalidFieldError):
            act()
    with pytest.raises(RefusedError):
        host.read_gpu(GPU, f"../{name}")


def test_a_write_is_one_system_call_on_a_file_that_exists(tmp_path: Path) -> None:
    path = tmp_path / "attribute"
    with pytest.raises(FileNotFoundError):
        sysfs.write_file(path, "1\n")
    path.write_text("")
    sysfs.write_file(path, "1\n")
    assert path.read_text() == "1\n"
