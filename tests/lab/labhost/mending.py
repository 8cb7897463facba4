# SPDX-License-Identifier: Apache-2.0
"""Patches two defects of QEMU that make guests of an emulated lab host hang, or that reset the lab host.

Both were seen in 11.1.3 and are also in the sources of 10.0.13. The patch replaces instructions of the program by
others of the same length. A program that was compiled differently is left unchanged.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Defect:
    """A defect. `code` matches the place in the program, with the bad instruction as its group; `cure` returns the
    replacement."""

    name: str
    code: re.Pattern[bytes]
    cure: Callable[[bytes], bytes]


def _nop(_: bytes) -> bytes:
    return b"\x66\x0f\x1f\x44\x00\x00"


def _locked(instruction: bytes) -> bytes:
    """`andl $0xffffff7f` as `lock andb $0x7f`, which is two bytes shorter."""
    return b"\xf0\x80" + instruction[1:6] + b"\x7f" + b"\x66\x90"


DEFECTS = (
    # helper_vmrun() delivers the interrupt that the hypervisor injects, but leaves its vector as the processor's
    # pending exception. If QEMU's threads kick the processor before the guest's next exit, the vector is delivered once
    # more. That happens at any instruction, even where the guest has interrupts disabled, and the guest may hang or
    # crash. It was seen by counting the vectors from 32 that reach x86_cpu_do_interrupt(): that path is for exceptions,
    # so there should be none. The store is unnecessary because the delivery gets the vector as an argument.
    Defect(
        name="VMRUN leaves an interrupt behind",
        code=re.compile(
            rb"(\x89[\xb0-\xb7]....)"  # mov %esi, exception_index(cpu)
            rb"\xc7[\x80-\x87]....\0\0\0\0"  # movl $0, exception_is_int(cpu)
            rb"\x48\xc7[\x80-\x87]....\xff\xff\xff\xff"  # movq $-1, exception_next_eip(cpu)
            rb"\xf6\x05....\x02\x0f\x85...."  # is it to be logged?
            rb"\xba\x01\0\0\0",  # mov $1, %edx: do_interrupt_x86_hardirq(cpu, vector, 1)
            re.DOTALL,
        ),
        cure=_nop,
    ),
    # Each processor that loads the state of its FPU, so at each task switch, clears a bit in the flags of the *first*
    # processor (cpu_clear_ignne()). The instruction is not atomic: a write of the first processor to those flags at
    # that moment is lost. In one observed case the lost write was the end of nested paging at a guest's exit. The
    # hypervisor's own addresses were then translated by the guest's nested page tables too, which ended in a triple
    # fault. Stopping and continuing the machine makes it likelier: with `stop` and `cont` every 10 ms it took seconds.
    Defect(
        name="loading an FPU's state undoes changes of the first processor's flags",
        code=re.compile(
            rb"\xe8...."  # call object_dynamic_cast_assert
            rb"(\x81[\xa0-\xa3\xa5-\xa7]....\x7f\xff\xff\xff)"  # andl $~HF2_IGNNE_MASK, hflags2(cpu)
            rb"\x48\x83\xc4\x08",  # add $8, %rsp
            re.DOTALL,
        ),
        cure=_locked,
    ),
)

RECIPE = b"".join(defect.code.pattern + defect.cure(b"instruction") for defect in DEFECTS)
"""The inputs of the result, besides the program."""


def mend(program: Path) -> list[str]:
    """Patch a QEMU for x86-64. Returns the names of the defects that were not found exactly once, which are left
    unchanged."""
    code = program.read_bytes()
    left = []
    for defect in DEFECTS:
        found = list(defect.code.finditer(code))
        if len(found) != 1:
            left.append(defect.name)
            continue
        start, end = found[0].span(1)
        code = code[:start] + defect.cure(found[0][1]) + code[end:]
    if len(left) < len(DEFECTS):
        program.write_bytes(code)
    return left
