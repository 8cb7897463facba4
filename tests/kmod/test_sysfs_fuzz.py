# SPDX-License-Identifier: Apache-2.0
"""Random text written to any attribute: a documented errno or success; a refused write has changed nothing."""

import errno
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.gpu import ADDRESS, Gpu
from tests.rig.settings import settings

DOCUMENTED = {"EINVAL", "ERANGE", "EBUSY", "ENOSPC", "ENOENT"}
NOT_OURS = ("remove", "uevent")

GOOD = [b"blue", b"1", b"0", b"100", b"1000\n", b"any\n", b"permit", b"renew", b"tenant=blue weight=2", b"16777216"]
GOOD += [b"lease"]
NUMBERS = [b"-1", b"+1", b"0x10", b"010", b"1 ", b" 1", b"1\n\n", b"9" * 30, b"4294967295", b"4294967296"]
WORDS = [b"", b"\n", b" ", b"weight=", b"=", b"tenant", b"weight=1 weight=2 cap_us=x", b"tenant=" + b"b" * 70]
BYTES = [b"a" * 64, b"a" * 4095, b"a" * 5000, b"\0", b"1\0002", b"\xff\xfe", b"%s%n", b"../blue", b"1" * 4096]
EDGES = [*NUMBERS, *WORDS, *BYTES, b"18446744073709551615", b"18446744073709551616"]


@pytest.fixture
def spoiled(gpu: Gpu) -> Iterator[Gpu]:
    """A GPU whose settings are restored afterwards."""
    yield gpu
    restore(gpu)


def restore(gpu: Gpu) -> None:
    gpu.clear()
    gpu.sysfs.write_gpu(ADDRESS, "memory_total", 1 << 30)


def some_text(chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.4:
        return chance.choice(GOOD)
    if kind < 0.8:
        return chance.choice(EDGES)
    return chance.randbytes(chance.randrange(200))


def attributes(uuid: str) -> list[Path]:
    """Every writable attribute of the accelerator and of a slice."""
    folders = [Path(f"/sys/bus/pci/devices/{ADDRESS}/vgpu"), Path(f"/sys/bus/mdev/devices/{uuid}")]
    paths = [path for folder in folders for path in sorted(folder.iterdir()) if path.is_file()]
    return [path for path in paths if path.stat().st_mode & 0o200 and path.name not in NOT_OURS]


def write(path: Path, text: bytes) -> str:
    """Write it; returns the kernel's errno, or 0."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text)
    except OSError as refused:
        return errno.errorcode[refused.errno or 0]
    else:
        return "done"
    finally:
        os.close(file)


def write_anything(gpu: Gpu, *, writes: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    gpu.tenant("blue", weight=100, timeslice_us=1000)
    uuid = gpu.slice()
    seen: Counter[str] = Counter()
    paths = attributes(uuid)
    assert {
        "attach",
        "engine",
        "memory_total",
        "max_chunk_us",
        "policy",
        "tenant",
        "weight",
        "sched_config",
        "permit",
    } <= {path.name for path in paths}
    before = settings(gpu.control, gpu.sysfs)
    for _ in range(writes):
        path = chance.choice(paths)
        text = some_text(chance)
        name = write(path, text)
        now = settings(gpu.control, gpu.sysfs)
        assert name == "done" or now == before, f"{path.name} refused {text!r} with {name} and has changed something"
        assert name in DOCUMENTED | {"done"}, f"{path.name} answered {text!r} with {name}"
        if now != before:
            seen["changed"] += 1
        before = now
        seen[name] += 1
        if chance.random() < 0.05:  # a tenant makes the others read-only
            gpu.control.set_slice(uuid, tenant="")
            before = settings(gpu.control, gpu.sysfs)
    return seen


def check(seen: Counter[str]) -> None:
    assert min(seen[name] for name in ("done", "changed", "EINVAL", "ERANGE", "EBUSY")) > 0, seen


def test_any_text_written_to_any_attribute_is_answered_as_documented(spoiled: Gpu) -> None:
    check(write_anything(spoiled, writes=300, seed=1))


@pytest.mark.long
def test_very_much_text_written_to_attributes_is_answered_as_documented(spoiled: Gpu, fuzz_s: float) -> None:
    seen: Counter[str] = Counter()
    end = time.monotonic() + fuzz_s / 10
    for seed in itertools.count(2):
        seen += write_anything(spoiled, writes=500, seed=seed)
        restore(spoiled)
        if time.monotonic() > end:
            break
    check(seen)
