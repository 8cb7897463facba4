# SPDX-License-Identifier: Apache-2.0
"""What vgpu_defects.ko (tests/kmod/defects) does on purpose, and what the debug kernel says of it."""

# After KASAN's word lockdep is silent: it comes last.
COMPLAINTS = {
    "inversion": "possible circular locking dependency detected",
    "sleep": "sleeping function called from invalid context",
    "leak": "new suspected memory leaks",
    "shift": "UBSAN: shift-out-of-bounds",
    "use-after-free": "KASAN: slab-use-after-free in defect_use_after_free",
}


def each_defect(module: str) -> str:
    """Shell command, which succeeds; `module`: where vgpu_defects.ko is."""
    return f"for what in {' '.join(COMPLAINTS)}; do insmod {module} what=$what; done 2>/dev/null; true\n"
