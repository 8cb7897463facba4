# SPDX-License-Identifier: Apache-2.0
"""The arbiter and the child's lease machine, compiled for tests in virtual time.

If necessary, this builds the extension from the present sources into build/compute/tests.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from cffi import FFI

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    *sorted((ROOT / "kmod/sched").glob("*.c")),
    ROOT / "compute/executor/child/lease_client.c",
)
HEADERS = (
    *sorted((ROOT / "kmod/sched").glob("*.h")),
    ROOT / "compute/executor/child/lease_client.h",
    ROOT / "kmod/uapi/vgpu_lease_page.h",
)

CDEF = """
struct vgpu_sched_params {
    uint64_t max_chunk_ns; uint64_t min_chunk_ns; uint64_t switch_cost_ns; bool splits;
    unsigned int policy; uint32_t places; uint32_t reserve_limit_permille; ...;
};
struct vgpu_group_params {
    uint32_t weight; uint64_t timeslice_ns; uint64_t cap_ns; uint64_t cap_period_ns; uint64_t burst_ns;
    unsigned int mode; unsigned int band; uint64_t reserve_ns; uint64_t reserve_period_ns;
    uint64_t hold_max_ns; uint32_t inversion_permille; uint64_t inversion_burst_ns; ...;
};
struct vgpu_slice_params { uint32_t weight; uint64_t cap_ns; uint64_t cap_period_ns; uint64_t burst_ns; };
struct vgpu_stream_request {
    uint32_t op; uint32_t flags; uint64_t lease; uint32_t kernel_id; uint32_t reserved; uint64_t hint_ns;
};

struct vgpu_watch_settings {
    uint32_t processors; uint32_t free_permille; uint32_t allowance_permille; uint64_t burst_ns;
    uint64_t every_ns; uint64_t penalty_ns;
};
struct vgpu_watch { uint64_t until_ns; ...; };
void vgpu_watch_reset(struct vgpu_watch *);
uint64_t vgpu_watch_look(struct vgpu_watch *, const struct vgpu_watch_settings *, uint64_t, uint64_t, uint64_t);

struct vgpu_arbiter_settings {
    uint64_t grace_ns; uint64_t early_ns; uint64_t gate_limit_ns; struct vgpu_watch_settings watch;
};
struct vgpu_stream_view { uint64_t state; uint64_t dry_since_ns; uint64_t idle_ns; };
struct vgpu_arbiter_lease { uint64_t number; unsigned int state; uint64_t begun_ns; uint64_t expires_ns; };
struct vgpu_party_stats {
    uint64_t leases; uint64_t lent_ns; uint64_t dries; uint64_t recalls;
    uint64_t waits; uint64_t waited_ns; uint64_t longest_wait_ns; uint64_t gates; uint64_t gate_ns;
    uint64_t longest_gate_ns; uint64_t offences; uint64_t fined_ns;
};
struct vgpu_sched_stats { uint64_t idle_ns; ...; };
struct vgpu_sched { struct vgpu_sched_stats stats; ...; };
struct vgpu_group_stats { uint64_t run_ns; ...; };
struct vgpu_group { struct vgpu_group_stats stats; ...; };
struct vgpu_slice { ...; };
struct vgpu_stream { struct vgpu_party *party; bool want; ...; };
struct vgpu_party {
    struct vgpu_slice *slice; struct vgpu_party_stats stats; struct vgpu_arbiter_lease lease; ...;
};
struct vgpu_arbiter { struct vgpu_arbiter_settings settings; ...; };
struct vgpu_arbiter_ops { ...; };
const struct vgpu_arbiter_ops *python_ops(void);

int vgpu_sched_init(struct vgpu_sched *, const struct vgpu_sched_params *, uint64_t);
int vgpu_sched_set_params(struct vgpu_sched *, const struct vgpu_sched_params *, uint64_t);
int vgpu_group_add(struct vgpu_sched *, struct vgpu_group *, const struct vgpu_group_params *, uint64_t);
int vgpu_group_update(struct vgpu_sched *, struct vgpu_group *, const struct vgpu_group_params *, uint64_t);
int vgpu_group_remove(struct vgpu_sched *, struct vgpu_group *, uint64_t);
int vgpu_slice_add(struct vgpu_sched *, struct vgpu_group *, struct vgpu_slice *, const struct vgpu_slice_params *,
                   uint64_t);
int vgpu_slice_remove(struct vgpu_sched *, struct vgpu_slice *, uint64_t);

void vgpu_arbiter_init(struct vgpu_arbiter *, struct vgpu_sched *, const struct vgpu_arbiter_ops *,
                       const struct vgpu_arbiter_settings *, uint64_t);
void vgpu_arbiter_configure(struct vgpu_arbiter *, const struct vgpu_arbiter_settings *, uint64_t);
uint64_t vgpu_arbiter_settle(struct vgpu_arbiter *, uint64_t);
void vgpu_arbiter_changed(struct vgpu_arbiter *, uint64_t);
void vgpu_arbiter_party_add(struct vgpu_arbiter *, struct vgpu_party *, struct vgpu_slice *, uint64_t);
void vgpu_arbiter_party_remove(struct vgpu_arbiter *, struct vgpu_party *, uint64_t);
void vgpu_arbiter_stream_add(struct vgpu_arbiter *, struct vgpu_party *, struct vgpu_stream *, bool, uint64_t);
void vgpu_arbiter_stream_remove(struct vgpu_arbiter *, struct vgpu_stream *, uint64_t);
bool vgpu_arbiter_request(struct vgpu_arbiter *, struct vgpu_stream *, const struct vgpu_stream_request *, uint64_t);
void vgpu_arbiter_gate_answer(struct vgpu_arbiter *, struct vgpu_party *, uint64_t, bool, uint64_t, uint64_t);
void vgpu_arbiter_gate_reset(struct vgpu_arbiter *, struct vgpu_party *, uint64_t);
void vgpu_arbiter_timer(struct vgpu_arbiter *, uint64_t);
struct vgpu_party *vgpu_arbiter_holder(const struct vgpu_arbiter *);
bool vgpu_arbiter_is_confined(const struct vgpu_arbiter *, const struct vgpu_party *);

#define VGPU_FIELD_NONE ...
#define VGPU_FIELD_WEIGHT ...
#define VGPU_FIELD_TIMESLICE ...
#define VGPU_FIELD_CAP ...
#define VGPU_FIELD_RESERVE_PERIOD ...

extern "Python" struct vgpu_party *on_party(struct vgpu_slice *);
extern "Python" void on_publish(struct vgpu_party *, const struct vgpu_arbiter_lease *, bool);
extern "Python" void on_read(struct vgpu_stream *, struct vgpu_stream_view *);
extern "Python" void on_gate(struct vgpu_party *, bool, uint64_t);
extern "Python" void on_gate_lost(struct vgpu_party *);
extern "Python" void on_arm(struct vgpu_arbiter *, uint64_t);

#define VGPU_LEASE_GO ...
#define VGPU_LEASE_NEED_START ...
#define VGPU_LEASE_NEED_CHECK ...
#define VGPU_LEASE_NEED_DRY ...
#define VGPU_LEASE_NEED_STOP ...
#define VGPU_LEASE_NEED_SLEEP ...
#define VGPU_LEASE_START ...
#define VGPU_LEASE_CHECK ...
#define VGPU_LEASE_DRY ...
#define VGPU_LEASE_STOP ...

struct vgpu_lease_client { bool busy; uint32_t wake; uint32_t kernel_id; uint64_t hint_ns; ...; };
struct pages {
    uint32_t wake; uint64_t lease; uint64_t begun_ns; uint64_t expires_ns; uint64_t generation;
    uint64_t state; uint64_t dry_since_ns; uint64_t idle_ns;
    bool sends; struct vgpu_stream_request request;
};
int operate(struct vgpu_lease_client *, struct pages *, int, uint64_t, uint32_t);
int vgpu_lease_need(const struct vgpu_lease_client *, bool, bool, uint32_t);
"""

PREAMBLE = """
#include "executor/child/lease_client.h"
#include "sched/vgpu_arbiter.h"

static struct vgpu_party *on_party(struct vgpu_slice *);
static void on_publish(struct vgpu_party *, const struct vgpu_arbiter_lease *, bool);
static void on_read(struct vgpu_stream *, struct vgpu_stream_view *);
static void on_gate(struct vgpu_party *, bool, uint64_t);
static void on_gate_lost(struct vgpu_party *);
static void on_arm(struct vgpu_arbiter *, uint64_t);

static const struct vgpu_arbiter_ops operations = {
    .party = on_party, .publish = on_publish, .read = on_read, .gate = on_gate, .gate_lost = on_gate_lost,
    .arm = on_arm,
};

static const struct vgpu_arbiter_ops *python_ops(void)
{
    return &operations;
}

/* What a child sees and says; one operation of its machine happens at one moment. */
struct pages {
    uint32_t wake; uint64_t lease; uint64_t begun_ns; uint64_t expires_ns; uint64_t generation;
    uint64_t state; uint64_t dry_since_ns; uint64_t idle_ns;
    bool sends; struct vgpu_stream_request request;
};

static int operate(struct vgpu_lease_client *client, struct pages *pages, int operation, uint64_t now_ns,
                   uint32_t flags)
{
    struct vgpu_lease_step step;
    uint64_t loaded = 0;

    pages->sends = false;
    vgpu_lease_begin(client, operation, now_ns, flags);
    for (;;) {
        step = vgpu_lease_next(client, loaded);
        switch (step.access) {
        case VGPU_LEASE_LOAD_WAKE: loaded = pages->wake; break;
        case VGPU_LEASE_LOAD_LEASE: loaded = pages->lease; break;
        case VGPU_LEASE_LOAD_BEGUN: loaded = pages->begun_ns; break;
        case VGPU_LEASE_LOAD_EXPIRES: loaded = pages->expires_ns; break;
        case VGPU_LEASE_LOAD_GENERATION: loaded = pages->generation; break;
        case VGPU_LEASE_STORE_STATE: pages->state = step.value; break;
        case VGPU_LEASE_STORE_DRY_SINCE: pages->dry_since_ns = step.value; break;
        case VGPU_LEASE_STORE_IDLE: pages->idle_ns = step.value; break;
        case VGPU_LEASE_BARRIER: break;
        case VGPU_LEASE_SEND: pages->sends = true; pages->request = step.request; break;
        case VGPU_LEASE_RESULT: return step.result;
        }
    }
}
"""


def _load() -> Any:
    written = hashlib.sha256((CDEF + PREAMBLE).encode())
    for path in (*SOURCES, *HEADERS):
        written.update(path.read_bytes())
    name = f"vgpu_arbiter_{written.hexdigest()[:16]}"
    folder = ROOT / "build/compute/tests"
    built = next(iter(folder.glob(f"{name}*.so")), None)
    if built is None:
        folder.mkdir(parents=True, exist_ok=True)
        built = _build(name, folder)
    spec = importlib.util.spec_from_file_location(name, built)
    if spec is None or spec.loader is None:
        raise ImportError(f"{built} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _build(name: str, folder: Path) -> Path:
    builder = FFI()
    builder.cdef(CDEF)
    builder.set_source(
        name,
        PREAMBLE,
        sources=[str(path) for path in SOURCES],
        include_dirs=[str(ROOT / "compute"), str(ROOT / "kmod")],
        extra_compile_args=["-O1", "-std=gnu11"],
    )
    with tempfile.TemporaryDirectory() as scratch:
        built = Path(builder.compile(tmpdir=scratch))
        target = folder / built.name
        partial = target.with_suffix(".new")
        partial.write_bytes(built.read_bytes())
        return partial.replace(target)


_module = _load()
ffi: Any = _module.ffi
lib: Any = _module.lib
