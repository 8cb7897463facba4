# SPDX-License-Identifier: Apache-2.0
"""The agent's root helper adopts a function that its vendor's driver keeps, and a real executor serves its slices."""

from collections.abc import Iterator
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import pytest

from tests.chain.test_helper_executes import UUID, executor, helpers_operations, prepare
from tests.rig import vendor
from tests.rig.drawing import COMPUTE
from tests.rig.gpu import ADDRESS, Gpu, load_module, poll, unload_module
from tests.rig.vfio import opened
from vgpumgr.control.sysfs import write_file
from vgpumgr.errors import RefusedError

pytestmark = pytest.mark.skipif(not COMPUTE.exists(), reason="this lab host does not compute: lab run --compute")

LIST = Path("/etc/vgpumgr/gpus")
SETTINGS = f'[gpus."{ADDRESS}"]\nengine = "lease"\ndriver = "{vendor.DRIVER}"\n'


@pytest.fixture
def helper(gpu: Gpu, tmp_path: Path) -> Iterator[Any]:
    """The helper's operations, on a host whose settings leave the function to its vendor's driver, which is bound to
    it."""
    listed = LIST.read_text() if LIST.exists() else ""
    LIST.write_text("")
    with vendor.has_function(gpu.sysfs), helpers_operations(tmp_path / "records", SETTINGS) as operations:
        yield operations
        operations.run("halt", {"uuid": UUID})
    LIST.write_text(listed)


def adopts(helper: Any, gpu: Gpu) -> None:
    assert helper.run("bind", {"gpu": ADDRESS}) == {"changed": True}
    assert helper.run("bind", {"gpu": ADDRESS}) == {"changed": False}
    found = gpu.control.gpu(ADDRESS)
    assert (found.adopted, found.driver, found.engine, found.attach) == (True, vendor.DRIVER, "lease", "permit")


def is_unloaded() -> bool:
    """Try to unload the module, which may be in use."""
    try:
        unload_module()
    except CalledProcessError:
        return False
    return True


def test_an_adopted_gpu_computes_until_its_driver_lets_go_and_again_afterwards(helper: Any, gpu: Gpu) -> None:
    """The vendor's driver waits for no VM, though one has the slice open and its executor is at work."""
    adopts(helper, gpu)
    prepare(helper, gpu, driver=vendor.DRIVER)
    assert executor(helper)["state"] == "running"
    with opened(UUID):
        write_file(Path("/sys/bus/pci/drivers") / vendor.DRIVER / "unbind", f"{ADDRESS}\n")
        poll(lambda: executor(helper)["state"] != "running")
        gpu.sysfs.bind(ADDRESS, vendor.DRIVER)
        with pytest.raises(RefusedError, match="still open"):
            helper.run("bind", {"gpu": ADDRESS})
    poll(lambda: gpu.control.gpus() == [])
    helper.run("halt", {"uuid": UUID})
    adopts(helper, gpu)
    prepare(helper, gpu, driver=vendor.DRIVER)
    assert executor(helper)["state"] == "running"
    helper.run("remove", {"uuid": UUID, "vm_gone": True, "withdraw": True})
    poll(lambda: not gpu.sysfs.exists(UUID))


def test_it_is_adopted_again_after_the_module_was_loaded_again(helper: Any, gpu: Gpu) -> None:
    adopts(helper, gpu)
    gpu.control.close()
    poll(is_unloaded)  # processes of the test before may still be ending
    load_module()
    gpu.control.__init__()  # type: ignore[misc]  # the family has a new number
    adopts(helper, gpu)
