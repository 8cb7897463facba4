# SPDX-License-Identifier: Apache-2.0
"""Builds the scheduler core of the kernel module as the extension `vgpumgr.sched._core`.

The wheel build uses `ffibuilder`, whose paths are relative to the project's root. `python -m vgpumgr.sched._build`
builds the extension in place, in a source tree whose wheel was installed without it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
CORE = "kmod/sched"
SOURCES = (
    "bucket.c",
    "ghost.c",
    "group.c",
    "hold.c",
    "item.c",
    "lease.c",
    "params.c",
    "predict.c",
    "queue.c",
    "reserve.c",
    "run.c",
    "tree.c",
)
HEADERS = ("internal.h", "port.h", "vgpu_lease.h", "vgpu_sched.h")

CDEF = """
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long u64;
typedef long s64;

#define VGPU_HIST_BUCKETS ...
#define VGPU_PREDICT_SAMPLES ...
#define VGPU_UNSOLD_TIMESLICE_NS ...
#define VGPU_YIELD_WANT ...
#define VGPU_YIELD_MORE ...
#define VGPU_YIELD_END ...

struct vgpu_sched_params {
    u64 max_chunk_ns; u64 min_chunk_ns; u64 switch_cost_ns; bool splits;
    unsigned int policy; u32 places; u32 reserve_limit_permille; ...;
};
struct vgpu_group_params {
    u32 weight; u64 timeslice_ns; u64 cap_ns; u64 cap_period_ns; u64 burst_ns;
    unsigned int mode; unsigned int band; u64 reserve_ns; u64 reserve_period_ns;
    u64 hold_max_ns; u32 inversion_permille; u64 inversion_burst_ns; ...;
};
struct vgpu_item_info { u32 kernel_id; u32 flags; u64 hint_ns; };
struct vgpu_slice_params { u32 weight; u64 cap_ns; u64 cap_period_ns; u64 burst_ns; };
struct vgpu_group_stats {
    u64 run_ns; u64 runs; u64 uncut_runs; u64 short_uncut_runs; u64 longest_run_ns;
    u64 throttles; u64 throttled_ns; u64 switches; u64 histogram[...];
    u64 latency_ns; u64 demotions; u64 holds; u64 hold_ns; u64 fills; u64 inversion_ns;
    u64 ghost_ns; u64 debt_ns;
};
struct vgpu_slice_stats {
    u64 run_ns; u64 runs; u64 throttles; u64 throttled_ns; u64 switches; u64 ghost_ns;
    u64 debt_ns;
};
struct vgpu_sched_stats { u64 wall_ns; u64 idle_ns; u64 picks; u64 switches; };
struct vgpu_group { struct vgpu_group_stats stats; struct vgpu_group_params params; ...; };
struct vgpu_slice {
    struct vgpu_slice_stats stats; struct vgpu_slice_params params;
    struct vgpu_group *group; ...;
};
struct vgpu_ended_run {
    bool valid; struct vgpu_group *group; u64 start_ns; u64 length_ns; u64 timeslice_ns;
    unsigned int reason; ...;
};
struct vgpu_decision {
    struct vgpu_slice *slice; u64 limit_ns; u64 wake_at_ns; unsigned int idle;
    struct vgpu_slice *payer; unsigned int band; bool switched;
    struct vgpu_ended_run ended; ...;
};
struct vgpu_yield { u32 flags; u32 kernel_id; u64 hint_ns; };
struct vgpu_lease {
    struct vgpu_slice *slice; u64 number; u64 begun_ns; u64 expires_ns; u64 review_at_ns;
    bool contended; unsigned int idle; struct vgpu_slice *payer; unsigned int band;
    bool switched; struct vgpu_ended_run ended; ...;
};
struct vgpu_sched {
    struct vgpu_sched_stats stats; struct vgpu_sched_params params; u64 now_ns; ...;
};

int vgpu_sched_params_check(const struct vgpu_sched_params *);
int vgpu_group_params_check(const struct vgpu_sched *, const struct vgpu_group *,
                            const struct vgpu_group_params *);
int vgpu_slice_params_check(const struct vgpu_sched *, const struct vgpu_slice_params *);
int vgpu_combination_check(unsigned int, unsigned int, unsigned int);
int vgpu_item_check(const struct vgpu_sched *, const struct vgpu_item_info *);
int vgpu_sched_advance(struct vgpu_sched *, u64);
u64 vgpu_sched_timeslice_floor(const struct vgpu_sched *);
int vgpu_sched_init(struct vgpu_sched *, const struct vgpu_sched_params *, u64);
int vgpu_sched_set_params(struct vgpu_sched *, const struct vgpu_sched_params *, u64);
int vgpu_group_add(struct vgpu_sched *, struct vgpu_group *,
                   const struct vgpu_group_params *, u64);
int vgpu_group_update(struct vgpu_sched *, struct vgpu_group *,
                      const struct vgpu_group_params *, u64);
int vgpu_group_remove(struct vgpu_sched *, struct vgpu_group *, u64);
int vgpu_slice_add(struct vgpu_sched *, struct vgpu_group *, struct vgpu_slice *,
                   const struct vgpu_slice_params *, u64);
int vgpu_slice_update(struct vgpu_sched *, struct vgpu_slice *,
                      const struct vgpu_slice_params *, u64);
int vgpu_slice_remove(struct vgpu_sched *, struct vgpu_slice *, u64);
int vgpu_slice_wake(struct vgpu_sched *, struct vgpu_slice *, u64);
int vgpu_slice_sleep(struct vgpu_sched *, struct vgpu_slice *, u64);
int vgpu_sched_pick(struct vgpu_sched *, u64, struct vgpu_decision *);
int vgpu_sched_busy_until(struct vgpu_sched *, u64);
int vgpu_slice_announce(struct vgpu_sched *, struct vgpu_slice *,
                        const struct vgpu_item_info *, u64);
int vgpu_slice_item_done(struct vgpu_sched *, struct vgpu_slice *,
                         const struct vgpu_item_info *, u64);
int vgpu_slice_end_request(struct vgpu_sched *, struct vgpu_slice *, u64);
int vgpu_slice_ready(struct vgpu_sched *, struct vgpu_slice *,
                     const struct vgpu_item_info *, u64);
int vgpu_sched_lend(struct vgpu_sched *, u64, struct vgpu_lease *);
int vgpu_sched_review(struct vgpu_sched *, u64, struct vgpu_lease *);
int vgpu_slice_yield(struct vgpu_sched *, struct vgpu_slice *, const struct vgpu_yield *, u64);
int vgpu_sched_unused(struct vgpu_sched *, u64, u64);
int vgpu_slice_owe(struct vgpu_sched *, struct vgpu_slice *, u64, u64);
bool vgpu_sched_is_urgent(const struct vgpu_sched *);
u64 vgpu_sched_left_ns(const struct vgpu_sched *);
void vgpu_group_settle(struct vgpu_group *);
void vgpu_slice_settle(struct vgpu_slice *);
u64 vgpu_predict_duration_ns(const struct vgpu_group *, const struct vgpu_item_info *);
u64 vgpu_predict_inversion_ns(const struct vgpu_group *, u32, u64, u64);
s64 vgpu_group_lag_ns(struct vgpu_sched *, struct vgpu_group *, u64);
s64 vgpu_slice_lag_ns(struct vgpu_sched *, struct vgpu_slice *, u64);
u32 vgpu_hist_bucket(u64);
u64 vgpu_hist_bucket_start_ns(u32);

u64 sched_vtime(const struct vgpu_sched *);
void sched_set_vtime(struct vgpu_sched *, u64);
u64 group_inner_vtime(const struct vgpu_group *);
bool group_is_member(const struct vgpu_group *);
bool slice_is_member(const struct vgpu_slice *);
"""

# Functions that only tests need, not the kernel.  Virtual time can only be set while the engine has no groups.
PREAMBLE = """
#include "vgpu_lease.h"

static u64 sched_vtime(const struct vgpu_sched *sched) { return sched->queue.vtime; }

static void sched_set_vtime(struct vgpu_sched *sched, u64 vtime)
{
    sched->queue.vtime_mark += vtime - sched->queue.vtime;
    sched->queue.vtime = vtime;
    sched->queue.vtime_high = vtime;
    sched->queue.credit_mark = vtime;
}

static u64 group_inner_vtime(const struct vgpu_group *group) { return group->queue.vtime; }
static bool group_is_member(const struct vgpu_group *group) { return group->entity.member; }
static bool slice_is_member(const struct vgpu_slice *slice) { return slice->entity.member; }
"""


def make_builder(core: str) -> FFI:
    """Describe the extension for the C sources in the directory `core`."""
    builder = FFI()
    builder.cdef(CDEF)
    builder.set_source(
        "vgpumgr.sched._core",
        PREAMBLE,
        sources=[f"{core}/{name}" for name in SOURCES],
        depends=[f"{core}/{name}" for name in HEADERS],
        include_dirs=[core],
        extra_compile_args=["-O2", "-std=gnu11"],
    )
    return builder


ffibuilder = make_builder(CORE)


def build(target_dir: Path, *, core: Path = ROOT / CORE) -> Path:
    """Compile the extension from the C sources in `core` into `target_dir`; return its path."""
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(make_builder(str(core)).compile(tmpdir=scratch))
        target = target_dir / built.name
        # A running process may have the file mapped, so the file must not be truncated.
        partial = target.with_suffix(".new")
        shutil.copyfile(built, partial)
        partial.replace(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{build(Path(__file__).parent)}\n")
