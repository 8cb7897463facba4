# SPDX-License-Identifier: Apache-2.0
"""The lanes of tests: the only definition of what `make test` and `make test-long` run. tests/run runs them."""

import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# The table at the end of a run lists the slowest tests.
DURATIONS = ("--durations=10", "--durations-min=1")
PYTEST = ("build/venv/bin/python", "-m", "pytest", "-q", *DURATIONS)
UNIT = ("tests/unit", "tests/sched", "tests/kfuzz", "tests/sim", "tests/policy", "tests/gpu")
# Where the role installs our software in a lab host. Tests there run the checkout's code with the installed libraries.
INSTALLED = "/checkout:/checkout/agent:/opt/vgpumgr/lib/python3.13/site-packages"
SUITE = ("python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", *DURATIONS)
LAB_PYTEST = ("--", *SUITE)
KMOD_LAB = ("--timeout", "1500")  # five minutes on an otherwise idle machine
# KASAN's shadow takes an eighth of the memory. Everything runs several times slower.
DEBUG_HOST = ("--bare", "--debug-kernel", "--memory", "3072", "--timeout", "10800")
DEBUG_GUESTS = ("--guest-kernel", "debug", "--memory", "3072", "--timeout", "10800")
LAB_TOOL = ("labtool", "kernel_image", "mending", "user_mode")
# User-mode Linux runs the module in an ordinary process of this machine.
USER_MODE = ("tests/lab/lab", "run", "--kernel", "uml")
USER_MODE_DEBUG = ("tests/lab/lab", "run", "--kernel", "uml-debug")
USER_MODE_SMP = ("tests/lab/lab", "run", "--kernel", "uml-smp")
# Runs in a lab host of its own, because failing each allocation in turn takes longer than the rest of the suite.
FAILURES = "tests/kmod/failures"
# The time bounds of these tests leave no room for a child's work besides its kernels.
COMPUTING_IS_FREE = ("tests/time/test_lease_shares.py", "tests/time/test_requests.py")


def emulated(directory: str) -> tuple[str, ...]:
    """The files in `directory` that need an emulated machine. Reading all other files takes long there."""
    files = sorted((ROOT / directory).rglob("test_*.py"))
    return tuple(str(file.relative_to(ROOT)) for file in files if "mark.emulated" in file.read_text(encoding="utf-8"))


def all_of(*commands: tuple[str, ...]) -> str:
    """Return a shell command line that runs all commands in order and fails if any of them fails."""
    return "; ".join(["status=0", *(f"{shlex.join(command)} || status=$?" for command in commands), "exit $status"])


@dataclass(frozen=True, kw_only=True)
class Lane:
    """Commands that belong together. All of them run, in order.

    `limit_s`: the time limit of the lane, which catches tests that hang. Lab hosts have additional limits of their own.
    `heavy`: the lane keeps two processors busy for minutes, so only one such lane runs at a time. Measurements should
    run alone.
    `waits`: the lane mostly waits for time to pass, so it can run beside two others.
    `rotates`: a long lane. CI runs a few of its commands when `make test` has left enough time.
    `usual_s`: the usual duration of each command on two processors without KVM, on a machine that has run `make test`.
    None means that it was not measured. CI starts a command only if at least this much time is left.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    limit_s: int
    heavy: bool = False
    waits: bool = False
    long: bool = False
    rotates: bool = True
    usual_s: tuple[int | None, ...] = ()

    def timed_commands(self) -> tuple[tuple[tuple[str, ...], int | None], ...]:
        """Return each command with its usual duration."""
        return tuple(zip(self.commands, self.usual_s or (None,) * len(self.commands), strict=True))


# Each stream runs its lanes in this order, the longest first.
LANES = (
    Lane(name="lint", commands=(("tests/lint",),), limit_s=300),
    Lane(name="api", commands=((*PYTEST, "-m", "not long", "tests/api"),), limit_s=3600),
    Lane(
        name="unit",
        commands=(
            (
                *PYTEST,
                "-m",
                "not long",
                *UNIT,
            ),
        ),
        limit_s=1800,
    ),
    Lane(name="agent", commands=((*PYTEST, "-m", "not long", "tests/agent"),), limit_s=1800, waits=True),
    Lane(
        name="compute",
        commands=(
            ("make", "-s", "-C", "compute", "PYTHON=build/venv/bin/python"),
            (*PYTEST, "-m", "not long", "tests/compute"),
        ),
        limit_s=1800,
    ),
    Lane(
        name="lab-tool",
        commands=((*PYTEST, "-m", "not long", *(f"tests/lab/test_{name}.py" for name in LAB_TOOL)),),
        limit_s=900,
    ),
    Lane(
        name="module",
        commands=(
            (*USER_MODE, "--minimal", "--", "tests/kmod/smoke"),
            (*USER_MODE, "--bare", *KMOD_LAB, *LAB_PYTEST, "-m", "not long and not emulated", "tests/kmod"),
            (*USER_MODE, "--bare", "--virtual-time", *LAB_PYTEST, "-m", "not emulated", "tests/time"),
        ),
        limit_s=3600,  # on a new machine, the lane first builds the kernel
        waits=True,
    ),
    Lane(
        name="kmod",
        commands=(
            ("tests/lab/lab", "build", "--what", "checkpatch"),
            ("tests/lint", "checkpatch"),
            ("tests/lab/lab", "build", "--what", "sparse"),
            ("tests/lab/lab", "run", "--minimal", "--kernel", "6.1", "--", "tests/kmod/smoke"),
            ("tests/lab/lab", "run", "--minimal", "--kernel", "6.12", "--", "tests/kmod/smoke"),
            ("tests/lab/lab", "run", "--minimal", "--kernel", "7.x", "--", "tests/kmod/smoke"),
            ("tests/lab/lab", "run", *KMOD_LAB, *LAB_PYTEST, "-m", "emulated and not long", *emulated("tests/kmod")),
        ),
        limit_s=3600,  # on a new machine, the lane first builds the lab hosts
        heavy=True,
    ),
    Lane(
        name="time",
        commands=(
            (
                "tests/lab/lab",
                "run",
                "--icount",
                "--timeout",
                "1500",
                "--",
                all_of(
                    (*SUITE, "-m", "emulated", *emulated("tests/time")),
                    (*SUITE, "tests/product/virtual_time"),
                ),
            ),
        ),
        limit_s=1800,
    ),
    Lane(
        name="chain",
        commands=(
            (
                "tests/lab/lab",
                "run",
                "--compute",
                "--timeout",
                "2400",
                "--env",
                f"PYTHONPATH={INSTALLED}",
                *LAB_PYTEST,
                "-m",
                "not long",
                "tests/chain",
            ),
        ),
        limit_s=2700,
        heavy=True,
    ),
    Lane(
        name="product",
        commands=(("tests/lab/lab", "run", "--timeout", "1800", *LAB_PYTEST, "-m", "not long", "tests/product"),),
        limit_s=3000,
        heavy=True,
    ),
    Lane(
        name="kmod-long",
        commands=(
            ("tests/lab/lab", "build", "--what", "sparse", "--kernel", "6.1", "--kernel", "7.x"),
            ("tests/lab/lab", "run", "--kernel", "6.1", *KMOD_LAB, *LAB_PYTEST, "-m", "not long", "tests/kmod"),
            ("tests/lab/lab", "run", "--kernel", "6.12", *KMOD_LAB, *LAB_PYTEST, "-m", "not long", "tests/kmod"),
            ("tests/lab/lab", "run", "--kernel", "7.x", *KMOD_LAB, *LAB_PYTEST, "-m", "not long", "tests/kmod"),
            ("tests/lab/lab", "run", "--timeout", "1500", *LAB_PYTEST, "-m", "long", "tests/kmod"),
            (
                "tests/lab/lab",
                "run",
                "--icount",
                "--timeout",
                "1500",
                "--env",
                "STORM_MEASURED_S=3",
                *LAB_PYTEST,
                *(f"--ignore={file}" for file in COMPUTING_IS_FREE),
                "tests/time",
            ),
            ("build/venv/bin/python", "-m", "tests.bench.kmod", "--strict"),
            ("build/venv/bin/python", "-m", "tests.mutants.module"),
        ),
        limit_s=9000,
        heavy=True,
        long=True,
        usual_s=(120, 600, 600, 600, None, 540, 300, 600),
    ),
    Lane(
        name="module-debug",
        commands=(
            ("tests/lab/lab", "build", "--what", "selftests"),
            (*PYTEST, "tests/lab/test_debug_kernel.py", "-k", "uml-debug"),
            (*USER_MODE_DEBUG, "--minimal", "--", "tests/kmod/smoke"),
            (
                *USER_MODE_DEBUG,
                "--bare",
                "--timeout",
                "3600",
                *LAB_PYTEST,
                "-m",
                "not long and not emulated",
                f"--ignore={FAILURES}",
                "tests/kmod",
            ),
            (*USER_MODE_DEBUG, "--bare", "--timeout", "1800", *LAB_PYTEST, "-m", "not long", "tests/kmod/test_fuzz.py"),
        ),
        limit_s=7200,  # on a new machine, the lane first builds the kernel
        long=True,
        usual_s=(120, 60, 30, 600, 60),
    ),
    Lane(
        name="module-smp",
        commands=(
            (*USER_MODE_SMP, "--minimal", "--", "tests/kmod/smoke"),
            (
                *USER_MODE_SMP,
                "--bare",
                "--timeout",
                "1800",
                *LAB_PYTEST,
                "-m",
                "not long and not emulated",
                f"--ignore={FAILURES}",
                # KUnit in kernel 7.x does not report which cases passed.
                "--ignore=tests/kmod/test_kunit.py",
                "tests/kmod",
            ),
            (
                *USER_MODE_SMP,
                "--bare",
                "--timeout",
                "1800",
                *LAB_PYTEST,
                "-m",
                "not long",
                "tests/kmod/test_fuzz.py",
                "tests/kmod/test_storms.py",
            ),
        ),
        limit_s=3 * 3600,  # on a new machine, the lane first builds the kernel
        long=True,
        usual_s=(1500, 600, 120),  # the first command builds the kernel
    ),
    Lane(
        name="kernel-debug",
        commands=(
            ("tests/lab/lab", "build", "--what", "selftests"),
            ("tests/lab/lab", "build", "--what", "checkpatch"),
            ("tests/lab/lab", "run", "--minimal", "--debug-kernel", "--timeout", "1200", "--", "tests/kmod/smoke"),
            ("tests/lint", "--all"),
            (*PYTEST, "tests/lab/test_debug_kernel.py", "-k", "not uml-debug"),
            ("tests/lab/lab", "run", *DEBUG_HOST, *LAB_PYTEST, "-m", "not long", f"--ignore={FAILURES}", "tests/kmod"),
            ("tests/lab/lab", "run", *DEBUG_HOST, *LAB_PYTEST, FAILURES),
            ("tests/lab/lab", "run", *DEBUG_HOST, *LAB_PYTEST, "-m", "long", "tests/kmod/test_fuzz.py"),
            ("tests/lab/lab", "run", *DEBUG_GUESTS, *LAB_PYTEST, "tests/chain/test_guest_driver.py"),
        ),
        limit_s=8 * 3600,  # on a new machine, the lane first builds the kernel
        heavy=True,
        long=True,
        # Commands that need this kernel first build it for half an hour. CI has no time for that and runs module-debug
        # instead.
        usual_s=(None, 30, 5400, 60, 5400, 5400, 5400, 5400, 5400),
    ),
    Lane(
        name="chain-long",
        commands=(
            (
                "tests/lab/lab",
                "run",
                "--compute",
                "--timeout",
                "1500",
                "--env",
                f"PYTHONPATH={INSTALLED}",
                *LAB_PYTEST,
                "-m",
                "long",
                "tests/chain",
            ),
            # These tests run as systemd units; lab hosts have no systemd by default.
            (
                "tests/lab/lab",
                "run",
                "--systemd",
                "--compute",
                "--timeout",
                "1500",
                "--env",
                f"PYTHONPATH={INSTALLED}",
                *LAB_PYTEST,
                "tests/chain/test_helper_executes.py",
            ),
            (
                "tests/lab/lab",
                "run",
                "--timeout",
                "3000",
                "--env",
                f"PYTHONPATH={INSTALLED}",
                "--neighbour",
                "python3 -m tests.neighbours.far_side",
                *LAB_PYTEST,
                "tests/neighbours",
            ),
        ),
        limit_s=5400,
        heavy=True,
        long=True,
    ),
    Lane(
        name="product-long",
        commands=(
            ("tests/lab/lab", "run", "--timeout", "2400", *LAB_PYTEST, "-m", "long", "tests/product"),
            ("tests/lab/lab", "run", "--systemd", "--timeout", "900", *LAB_PYTEST, "tests/product/systemd"),
            ("tests/lab/lab", "run", "--systemd", "--reboots", "--timeout", "2400", "--", "tests/product/reboot/story"),
        ),
        limit_s=6600,
        heavy=True,
        long=True,
    ),
    Lane(
        name="role-long",
        commands=(
            (*PYTEST, "tests/lab/test_role.py", "tests/lab/test_rolling_update.py", "tests/lab/test_dkms.py"),
            (*PYTEST, "-m", "long", "tests/lab/test_labtool.py"),
        ),
        limit_s=3600,
        heavy=True,
        long=True,
    ),
    Lane(
        name="bench-api-long",
        commands=(("build/venv/bin/python", "-m", "tests.bench.api", "--strict"),),
        limit_s=3600,
        heavy=True,  # its targets assume an otherwise idle machine
        long=True,
        rotates=False,  # slow machines miss the targets too: docs/api-benchmark.md lists three
        usual_s=(1080,),
    ),
    Lane(
        name="compute-long",
        commands=(
            ("make", "-s", "-C", "compute", "PYTHON=build/venv/bin/python"),
            (*PYTEST, "-m", "long", "tests/compute"),
        ),
        limit_s=2 * 3600,
        long=True,
    ),
    Lane(
        name="unit-long",
        commands=(
            (
                *PYTEST,
                "-o",
                "faulthandler_timeout=0",  # dumping the stack of a running thread can crash it
                "-m",
                "long",
                *UNIT,
                "--ignore=tests/gpu/device",
                "tests/agent",
                "tests/api",
            ),
        ),
        limit_s=3 * 3600,
        long=True,
    ),
    Lane(
        name="gpu",
        commands=((*PYTEST, "-s", "tests/gpu/device"),),
        limit_s=3 * 3600,
        heavy=True,
        long=True,
        rotates=False,
    ),
)
