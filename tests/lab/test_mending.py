# SPDX-License-Identifier: Apache-2.0
"""The defects of QEMU that the lab patches, each rebuilt from a few instructions like QEMU's."""

import ctypes
import shutil
import subprocess
from pathlib import Path

from labhost.mending import DEFECTS, mend

VMRUN, FLAGS = (defect.name for defect in DEFECTS)

INJECT = """
    .globl inject
inject:                     /* int inject(struct cpu *cpu, int vector): the tail of helper_vmrun() */
    push %rbx
    mov %rdi, %rbx
    movl %esi, 0x1000(%rbx)
    movl $0, 0x1004(%rbx)
    movq $-1, 0x1008(%rbx)
    testb $2, loglevel(%rip)
    jne 0f
    mov $1, %edx
    mov %esi, %eax
    .skip 200, 0x90
0:  pop %rbx
    ret
    .data
loglevel:
    .byte 0
    .section .note.GNU-stack
"""

CLEAR = """
    .globl clear
clear:                      /* void clear(struct cpu *cpu): cpu_clear_ignne() */
    sub $8, %rsp
    call cast
    andl $0xffffff7f, 0x1000(%rax)
    add $8, %rsp
    ret
cast:
    mov %rdi, %rax
    ret
    .section .note.GNU-stack
"""

RACE = """
#include <pthread.h>
#include <stdatomic.h>

void clear(char *cpu);

static char cpu[8192];
static atomic_int over;

static void *clearer(void *unused)
{
    while (!over)
        clear(cpu);
    return unused;
}

/* How many of this thread's changes of a bit another thread's clear() undid. */
int undone(int changes)
{
    volatile unsigned *flags = (volatile unsigned *)(cpu + 0x1000);
    pthread_t other;
    int lost = 0;

    over = 0;
    *flags = 0;
    pthread_create(&other, 0, clearer, 0);
    for (int i = 0; i < changes; i++) {
        __asm__ volatile("orl $0x40, %0" : "+m"(*flags));
        lost += !(*flags & 0x40);
        __asm__ volatile("andl $0xffffffbf, %0" : "+m"(*flags));
        lost += !!(*flags & 0x40);
    }
    over = 1;
    pthread_join(other, 0);
    return lost;
}

/* What clear() leaves of flags that are all set. */
unsigned cleared(void)
{
    *(unsigned *)(cpu + 0x1000) = ~0u;
    clear(cpu);
    return *(unsigned *)(cpu + 0x1000);
}
"""


def compiled(place: Path, **sources: str) -> Path:
    files = []
    for suffix, text in sources.items():
        files.append(place / f"part.{suffix}")
        files[-1].write_text(text)
    library = place / "built.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", library, *files], check=True)
    return library


def copied(library: Path) -> Path:
    """Copy the library: the loader does not load a file again that it has loaded already."""
    return Path(shutil.copy(library, library.with_name("mended.so")))


def injected(library: Path) -> tuple[int, list[int]]:
    """The vector that `inject` delivers, and the state in which it leaves a processor whose fields were all 5."""
    cpu = (ctypes.c_int32 * 2048)(*[5] * 2048)
    delivered = ctypes.CDLL(str(library)).inject(cpu, 236)
    return delivered, list(cpu[1024:1028])


def test_an_injected_interrupt_leaves_nothing_behind_once_vmrun_is_mended(tmp_path: Path) -> None:
    built = compiled(tmp_path, s=INJECT)
    mended = copied(built)
    assert mend(mended) == [FLAGS]
    assert injected(built) == (236, [236, 0, -1, -1])
    assert injected(mended) == (236, [5, 0, -1, -1])

    before = mended.read_bytes()
    assert mend(mended) == [VMRUN, FLAGS]
    assert mended.read_bytes() == before


def test_what_one_processor_writes_to_its_flags_another_does_not_undo(tmp_path: Path) -> None:
    library = compiled(tmp_path, s=CLEAR, c=RACE)
    assert mend(library) == [VMRUN]
    mended = ctypes.CDLL(str(library))
    assert mended.cleared() & 0xFFFFFFFF == 0xFFFFFF7F
    assert mended.undone(3_000_000) == 0
