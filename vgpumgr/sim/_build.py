# SPDX-License-Identifier: Apache-2.0
"""Builds the simulator's engine and the scheduler core as one extension, `vgpumgr.sim._native`.

The wheel build uses `ffibuilder`, whose paths are relative to the project's root. `python -m vgpumgr.sim._build` builds
the extension in place, in a source tree whose wheel was installed without it.
"""

from __future__ import annotations

import runpy
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
NATIVE = "vgpumgr/sim/native"
# Import by path, because `vgpumgr` itself need not be importable where a wheel is built.
CORE_BUILD: dict[str, Any] = runpy.run_path(str(ROOT / "vgpumgr" / "sched" / "_build.py"))

CDEF = """
#define VGPU_CHUNK_MIN_NS ...
#define VGPU_CHUNK_MAX_NS ...
#define VGPU_SWITCH_COST_MAX_NS ...

enum sim_error { SIM_NO_MEMORY, SIM_TOO_LONG, SIM_HAS_SLICES, SIM_BAD_FIELD, ... };
enum sim_phase { SIM_FINISHED, ... };

struct sim_model {
    u32 kind; u64 max_chunk_ns; u64 min_chunk_ns; u64 switch_cost_ns; u64 split_cost_ns;
    u64 preempt_latency_ns; ...;
};
struct sim_program {
    u32 nr_kernels; const u64 *work_ns; const u64 *launch_ns; const u64 *sync_ns;
    const u64 *hint_ns; const u32 *kernel_id; const unsigned char *sync;
    const unsigned char *claims; u32 nr_requests; const u32 *request_first;
    const u64 *think_ns; const u64 *arrivals_ns; bool is_open; bool endless; u64 count;
    u64 start_ns; u32 queue_depth; u32 work_jitter_permille; u32 host_jitter_permille; ...;
};
struct sim_slice_counters {
    u64 work_ns; u64 overhead_ns; u64 hold_ns; u64 switches; u64 items; u64 wait_ns;
    u64 max_wait_ns; u64 requests_begun; u64 requests_done; ...;
};
struct sim_counters {
    u64 idle_ns; u64 decisions; u64 picks; u64 switches; u64 preemptions; u64 events; ...;
};
struct sim_run {
    u64 start_ns; u64 length_ns; u32 group; u32 slice; u32 reason; u64 timeslice_ns; ...;
};
struct sim_log { char *data; u64 nr; ...; };
struct sim_group { u32 priority; ...; };
struct sim_slice {
    enum sim_phase phase; u32 queued; struct sim_slice_counters counters; struct sim_log requests;
    ...;
};
struct sim_parameter { const char *name; u64 preset; u64 least; u64 most; ...; };
struct sim_scheduler { const char *name; const struct sim_parameter *parameters; ...; };
struct sim {
    u64 now_ns; void *sched; struct sim_counters counters; u64 hash;
    struct sim_group **groups; struct sim_slice **slices;
    bool record_runs; bool record_items; struct sim_log runs; struct sim_log items; ...;
};

extern const struct sim_scheduler *const sim_schedulers[];
struct sim *sim_new(const struct sim_model *, const struct sim_scheduler *, const u64 *, u64, int *);
void sim_free(struct sim *);
int sim_add_group(struct sim *, const struct vgpu_group_params *, u32);
int sim_update_group(struct sim *, u32, const struct vgpu_group_params *, u32);
int sim_remove_group(struct sim *, u32);
int sim_add_slice(struct sim *, u32, const struct vgpu_slice_params *, const struct sim_program *);
int sim_update_slice(struct sim *, u32, const struct vgpu_slice_params *);
void sim_remove_slice(struct sim *, u32);
void sim_park_slice(struct sim *, u32, bool);
int sim_run(struct sim *, u64);
void sim_present_run(const struct sim *, struct sim_run *);
struct vgpu_group *sim_core_group(struct sim *, u32);
"""


def make_builder(root: str, *, compile_args: tuple[str, ...] = ()) -> FFI:
    """Describe the extension for the sources below `root`, a path prefix."""
    core, native = f"{root}{CORE_BUILD['CORE']}", f"{root}{NATIVE}"
    builder = FFI()
    builder.cdef(CORE_BUILD["CDEF"] + CDEF)
    builder.set_source(
        "vgpumgr.sim._native",
        CORE_BUILD["PREAMBLE"] + '\n#include "sim.h"\n',
        sources=[f"{core}/{name}" for name in CORE_BUILD["SOURCES"]]
        + [f"{native}/{path.name}" for path in sorted((ROOT / NATIVE).glob("*.c"))],
        depends=[f"{core}/{name}" for name in CORE_BUILD["HEADERS"]]
        + [f"{native}/{path.name}" for path in sorted((ROOT / NATIVE).glob("*.h"))],
        include_dirs=[core, native],
        extra_compile_args=["-O2", "-std=gnu11", *compile_args],
    )
    return builder


ffibuilder = make_builder("")


def build(target_dir: Path) -> Path:
    """Compile the extension into `target_dir`; return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(make_builder(f"{ROOT}/").compile(tmpdir=scratch))
        target = target_dir / built.name
        # A running process may have the file mapped, so the file must not be truncated.
        partial = target.with_suffix(".new")
        shutil.copyfile(built, partial)
        partial.replace(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(__file__).parent)}\n")
