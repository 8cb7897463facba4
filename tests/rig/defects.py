# SPDX-License-Identifier: Apache-2.0
"""The defects that vgpu_defects.ko (tests/kmod/defects) has on purpose, and the reports of the debug kernel about
them."""

# Lockdep is silent after a report of KASAN, so the KASAN defect comes last.
COMPLAINTS = {
    "inversion": "possible circular locking dependency detected",
    "sleep": "sleeping function called from invalid context",
    "leak": "new suspected memory leaks",
    "shift": "UBSAN: shift-out-of-bounds",
    "use-after-free": "KASAN: slab-use-after-free in defect_use_after_free",
}


def each_defect(module: str) -> str:
    """A shell command that succeeds; `module`: the path of vgpu_defects.ko."""
    return f"for what in {' '.join(COMPLAINTS)}; do insmod {module} what=$what; done 2>/dev/null; true\n"
