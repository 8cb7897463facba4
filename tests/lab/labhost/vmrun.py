# SPDX-License-Identifier: Apache-2.0
"""Mends how QEMU emulates VMRUN, on which the guests of an emulated lab host run.

helper_vmrun() delivers the interrupt that the hypervisor injects, but leaves its vector behind as the processor's
pending exception. Whenever QEMU's threads nudge the processor before the guest exits next, the vector is delivered
once more: at any instruction, also where the guest takes no interrupts, and the guest may hang or crash. Seen in
11.1.3, also in the sources of 10.0.13, by counting the vectors from 32 that reach x86_cpu_do_interrupt(): none ever
should, that path is for exceptions.

The store is needless, for the delivery is told the vector in an argument. It is replaced by a NOP.
"""

import re
from pathlib import Path

_STORE = re.compile(
    rb"(\x89[\xb0-\xb7]....)"  # mov %esi, exception_index(cpu)
    rb"\xc7[\x80-\x87]....\0\0\0\0"  # movl $0, exception_is_int(cpu)
    rb"\x48\xc7[\x80-\x87]....\xff\xff\xff\xff"  # movq $-1, exception_next_eip(cpu)
    rb"\xf6\x05....\x02\x0f\x85...."  # is it to be logged?
    rb"\xba\x01\0\0\0",  # mov $1, %edx: do_interrupt_x86_hardirq(cpu, vector, 1)
    re.DOTALL,
)
_NOP = b"\x66\x0f\x1f\x44\x00\x00"

RECIPE = _STORE.pattern + _NOP
"""What the result depends on, besides the program."""


def mend(program: Path) -> bool:
    """Take the store out of a QEMU for x86-64; False, and nothing is changed, if it is not there exactly once."""
    code = program.read_bytes()
    found = list(_STORE.finditer(code))
    if len(found) != 1:
        return False
    start, end = found[0].span(1)
    program.write_bytes(code[:start] + _NOP + code[end:])
    return True
