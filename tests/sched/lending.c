// SPDX-License-Identifier: Apache-2.0
/*
 * The cost of a lease for the module: its own engine/lending.c with the arbiter and the
 * scheduler, against the kernel that tests/kfuzz/kernel.h plays.  Locks, timers and
 * wake-ups belong to the kernel and count as one call each.
 *
 *	lending MODE SLICES LEASES
 *
 * In MODE "turns" all slices always have work: each lease expires, and its yield hands the engine
 * to the next slice.  In "asks" the engine's holder has the engine alone until another slice asks,
 * and then runs out of work.  An instruction counter watches call_ready(), call_yield() and
 * call_timer().
 */
#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"

#define TIMESLICE_NS	1000000ull

struct slice {
	struct vgpu_device device;
	struct vgpu_tenant tenant;
	struct vgpu_binding binding;
	struct vgpu_child child;
	struct page pages[2];
};

static struct vgpu_parent parent;
static struct slice *slices;
static u64 now_ns = 1000000000ull, armed_at_ns, wakes;

/* ---- the kernel */

_Noreturn void kfuzz_broken(const char *file, int line, const char *what)
{
	fprintf(stderr, "%s:%d: %s\n", file, line, what);
	exit(2);
}

u64 ktime_get_ns(void) { return now_ns; }
void spin_lock(spinlock_t *lock) { lock->held = true; }
void spin_unlock(spinlock_t *lock) { lock->held = false; }
bool kfuzz_irqs_off(void) { return false; }
bool kfuzz_spinlock_held(const spinlock_t *lock) { return lock->held; }

void kfuzz_spin_unlock(spinlock_t *lock, bool irqs_off)
{
	(void)irqs_off;
	lock->held = false;
}

void wake_up_interruptible(wait_queue_head_t *head) { (void)head; wakes++; }

void vgpu_hrtimer_setup(struct hrtimer *timer, enum hrtimer_restart (*function)(struct hrtimer *timer),
			int clock, enum hrtimer_mode mode)
{
	(void)clock;
	(void)mode;
	timer->function = function;
}

void hrtimer_start(struct hrtimer *timer, ktime_t expires, enum hrtimer_mode mode)
{
	(void)timer;
	(void)mode;
	armed_at_ns = expires;
}

int hrtimer_try_to_cancel(struct hrtimer *timer)
{
	(void)timer;
	armed_at_ns = U64_MAX;
	return 0;
}

/* ---- the rest of the module: gates stay open, and are asked what children use */

void vgpu_binding_ask_gate(struct vgpu_device *device, bool close, u64 sequence)
{
	REQUIRE(!close);
	device->binding->gate_sequence = sequence;
}

void vgpu_binding_kill(struct vgpu_device *device)
{
	REQUIRE(!device);
}

/* ---- what is counted */

static void request(struct slice *slice, const struct vgpu_stream_request *says)
{
	spin_lock(&parent.engine.lock);
	REQUIRE(vgpu_lending_request(&slice->child, says, now_ns));
	spin_unlock(&parent.engine.lock);
}

noinline void call_ready(struct slice *slice)
{
	request(slice, &(struct vgpu_stream_request){ .op = VGPU_STREAM_READY });
}

noinline void call_yield(struct slice *slice, u32 flags)
{
	request(slice, &(struct vgpu_stream_request){ .op = VGPU_STREAM_YIELD, .flags = flags,
						      .lease = slice->device.party.lease.number });
}

noinline void call_timer(void)
{
	parent.engine.lease_timer.function(&parent.engine.lease_timer);
}

/* ---- slices, each with one child */

static struct vgpu_stream_page *said_by(struct slice *slice)
{
	return (struct vgpu_stream_page *)slice->pages[1].data;
}

static void begin(struct slice *slice)
{
	said_by(slice)->state = slice->device.party.lease.number << 1 | VGPU_STREAM_BUSY;
}

static void be_dry(struct slice *slice)
{
	said_by(slice)->dry_since_ns = now_ns;
	said_by(slice)->state = slice->device.party.lease.number << 1 | VGPU_STREAM_DRY;
}

static struct slice *holder(void)
{
	struct vgpu_party *party = vgpu_arbiter_holder(&parent.engine.arbiter);

	REQUIRE(party);
	return container_of(party, struct slice, device.party);
}

/* @want: its child already has work. */
static void add(struct slice *slice, bool want)
{
	struct vgpu_group_params granted = { .weight = 1, .timeslice_ns = TIMESLICE_NS };
	struct vgpu_slice_params own = { .weight = 1 };
	struct vgpu_engine *engine = &parent.engine;

	for (int i = 0; i < 2; i++)
		slice->pages[i].data = calloc(1, VGPU_LEASE_PAGE_BYTES);
	slice->binding.page = &slice->pages[0];
	slice->child.page = &slice->pages[1];
	slice->child.device = &slice->device;
	slice->child.stream.want = want;
	slice->device.parent = &parent;
	slice->device.binding = &slice->binding;
	INIT_LIST_HEAD(&slice->device.children);
	list_add_tail(&slice->child.node, &slice->device.children);
	REQUIRE(!vgpu_group_add(&engine->sched, &slice->tenant.group, &granted, now_ns));
	REQUIRE(!vgpu_slice_add(&engine->sched, &slice->tenant.group, &slice->device.slice, &own, now_ns));
	spin_lock(&engine->lock);
	vgpu_lending_add(&slice->device, now_ns);
	spin_unlock(&engine->lock);
}

/* Its lease expires, however many reviews come before. */
static void let_expire(struct slice *slice)
{
	while (slice->device.party.lease.state != VGPU_LEASE_EXPIRED) {
		REQUIRE(armed_at_ns != U64_MAX);
		now_ns = max(now_ns, armed_at_ns);
		call_timer();
	}
}

static void answer_gates(u32 nr)
{
	for (u32 i = 0; i < nr; i++) {
		struct vgpu_exec_gate gate = { .sequence = slices[i].binding.gate_sequence, .done = 1 };

		slices[i].binding.gate_sequence = 0;
		if (!gate.sequence)
			continue;
		spin_lock(&parent.engine.lock);
		vgpu_lending_gate_answer(&slices[i].device, &gate, now_ns);
		spin_unlock(&parent.engine.lock);
	}
}

static void take_turns(u32 nr, u64 leases)
{
	while (leases--) {
		struct slice *slice = holder();

		begin(slice);
		let_expire(slice);
		be_dry(slice);
		call_yield(slice, VGPU_YIELD_WANT);
		REQUIRE(holder() != slice);
		answer_gates(nr);
	}
}

static void ask_in_turn(u32 nr, u64 leases)
{
	for (u64 i = 1; i <= leases; i++) {
		struct slice *slice = holder();

		begin(slice);
		now_ns += TIMESLICE_NS / 2;
		call_ready(&slices[i % nr]);
		be_dry(slice);
		call_yield(slice, 0);
		REQUIRE(holder() == &slices[i % nr]);
		answer_gates(nr);
	}
}

int main(int argc, char **argv)
{
	struct vgpu_calibration calibration = {};
	struct vgpu_sched_params params = { .min_chunk_ns = 1000 };
	bool turns;
	u32 nr;

	REQUIRE(argc == 4);
	nr = strtoul(argv[2], NULL, 10);
	slices = calloc(nr, sizeof(*slices));
	REQUIRE(slices && nr > 1);
	parent.engine.ops = &vgpu_lease_engine;
	vgpu_lease_engine.start(&parent.engine, NULL, &calibration);
	params.max_chunk_ns = calibration.max_chunk_ns;
	REQUIRE(!vgpu_sched_init(&parent.engine.sched, &params, now_ns));
	vgpu_lending_init(&parent.engine);
	vgpu_lending_begin(&parent.engine, now_ns);
	turns = !strcmp(argv[1], "turns");
	for (u32 i = 0; i < nr; i++)
		add(&slices[i], turns || !i);
	if (turns)
		take_turns(nr, strtoull(argv[3], NULL, 10));
	else
		ask_in_turn(nr, strtoull(argv[3], NULL, 10));
	REQUIRE(wakes);
	return 0;
}
