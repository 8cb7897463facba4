// SPDX-License-Identifier: GPL-2.0
/*
 * The whole life of a slice: it is created, configured, opened, used by anybody, closed and
 * removed, again and again, while an operator changes settings and memory runs out.
 * guest.c checks every access to guest memory, vmm.c checks the registers after every step,
 * and this file checks that nothing is left at the end.
 *
 *	fuzz_device SEED STEPS		or -- FILE ..., or libFuzzer, with -DLIBFUZZER
 */
#include "bound.h"
#include "leases.h"
#include "slices.h"
#include "vmm.h"

#include "descriptor.h"
#include "engine/engine.h"
#include "control/executor.h"
#include "engine/ring.h"

#define MEMORY_BYTES (64u << 10)
#define STEPS_PER_LIFE 400

static struct vgpu_parent *parent;
static struct vgpu_device *device;
static struct mdev_device mdev;
static bool opened;
static bool lending;		/* the engine is */
static u64 last_tenant;		/* the tenant at its last opening */
static u64 lives, opens, refused_opens, refused_probes, neighbours;

/* parent.c, netlink.c and netlink_event.c are not part of this program. */
void vgpu_parent_put(struct vgpu_parent *is)
{
	REQUIRE(is == parent && is->refs.count > 1);
	is->refs.count--;
}

struct vgpu_device *vgpu_device_lock(const guid_t *uuid)
{
	struct vgpu_device *found;

	kref_get(&parent->refs);
	mutex_lock(&parent->lock);
	list_for_each_entry(found, &parent->devices, node)
		if (guid_equal(&found->uuid, uuid))
			return found;
	vgpu_parent_unlock(parent);
	return NULL;
}

void vgpu_netlink_changed(void) { }
int vgpu_events_start(struct vgpu_engine *engine) { return 0; }
void vgpu_events_stop(struct vgpu_engine *engine) { }
void vgpu_event_tenant(struct vgpu_tenant *tenant, u8 command) { }
void vgpu_event_slice(struct vgpu_device *device, u8 command) { }
void vgpu_event_opened(struct vgpu_device *device) { }
void vgpu_event_source_init(struct vgpu_event_source *source, bool of_slice) { }
void vgpu_event_source_forget(struct vgpu_event_source *source) { }
void vgpu_event_note(struct vgpu_engine *engine, struct vgpu_event_source *source,
		     enum vgpu_event_kind kind, u64 detail, u64 detail2) { }
void vgpu_events_decided(struct vgpu_engine *engine, struct vgpu_slice *before,
			 const struct vgpu_decision *decision) { }
const struct attribute_group *vgpu_device_groups[1];

static void close_device(void)
{
	if (!opened)
		return;
	device->vdev.ops->close_device(&device->vdev);
	slices_closed();
	guest_disabled();
	if (sim_one_in(2))	/* otherwise it outlives the device's file */
		migrate_closed();
	guest_begin(NULL);
	opened = false;
}

void guest_let_go(struct vfio_device *vdev)
{
	if (slices_let_go(vdev) || !opened)
		return;
	vdev->ops->request(vdev, 0);
	if (sim_one_in(2))
		vmm_revoked();
	close_device();
}

/* A generation that somebody has read never comes back, whatever happened to its tenant. */
static void configure_tenant(const char *name, const struct vgpu_group_params *params)
{
	static u64 last_generation;
	enum vgpu_sched_field fault;
	struct vgpu_tenant *tenant;

	if (vgpu_tenant_configure(parent, name, params, &fault))
		return;
	tenant = vgpu_tenant_find(parent, name);
	REQUIRE(tenant->generation > last_generation);
	last_generation = tenant->generation;
}

/* A change of the engine's holder must be worth its cost. */
static u64 timeslice_ns(void) { return (lending ? 20 : 1) * NSEC_PER_MSEC; }

static void configure(void)
{
	struct vgpu_group_params params = { .weight = 1 + sim_below(100),
					    .timeslice_ns = timeslice_ns() };
	struct vgpu_slice_params slice = { .weight = 1 + sim_below(9) };
	struct vgpu_tenant *tenant;
	enum vgpu_sched_field fault;
	const char *name = sim_below(2) ? "blue" : "red";

	if (sim_one_in(3)) {
		params.cap_period_ns = 10 * timeslice_ns();
		params.cap_ns = params.cap_period_ns / (1 + sim_below(20));
	}
	if (sim_one_in(3)) {
		params.band = VGPU_BAND_LATENCY;
		params.reserve_period_ns = 10 * timeslice_ns();
		params.reserve_ns = params.reserve_period_ns / (1 + sim_below(20));
		params.hold_max_ns = sim_below(2) * NSEC_PER_MSEC;
	}
	mutex_lock(&parent->lock);
	switch (sim_below(4)) {
	case 0:
		tenant = vgpu_tenant_find(parent, name);
		if (tenant)
			vgpu_tenant_unconfigure(tenant);
		break;
	case 1:
		tenant = device->tenant;
		vgpu_device_assign(device, name, &slice, &fault);
		slices_moves[0] += tenant && device->tenant != tenant;
		break;
	default:
		configure_tenant(name, &params);
	}
	mutex_unlock(&parent->lock);
}

static void set_chunk(void)
{
	struct vgpu_sched_params params = vgpu_engine_params(&parent->engine);

	params.max_chunk_ns = sim_below(2000) * NSEC_PER_USEC;
	vgpu_engine_configure(&parent->engine, &params);
}

/* Another accelerator comes and goes: measurements of it do not affect this one. */
static void have_a_neighbour(void)
{
	static struct vgpu_engine neighbour;
	struct vgpu_engine *engine = &parent->engine;
	const struct vgpu_item item = { .desc = { .op = VGPU_OP_FACT, .arg = { 1u << 30 } } };
	bool estimates = engine->ops->estimate_ns;
	u64 estimate_ns = estimates ? engine->ops->estimate_ns(engine, &item) : 0;
	int ret;

	neighbour = (struct vgpu_engine){};
	ret = vgpu_engine_start(&neighbour, engine->ops, NULL, "neighbour");
	REQUIRE(!ret || (ret == -ENOMEM && sim_has_failed));
	REQUIRE(!estimates || engine->ops->estimate_ns(engine, &item) == estimate_ns);
	if (ret)
		return;
	vgpu_engine_stop(&neighbour);
	neighbours++;
}

static void create(void)
{
	static struct mdev_type *type;

	type = &parent->classes[0].type;
	type->parent = &parent->mdev;
	parent->classes[0].bytes = MEMORY_BYTES;
	mdev = (struct mdev_device){ .type = type };
	if (vgpu_mdev_driver.probe(&mdev)) {
		REQUIRE(sim_has_failed);
		refused_probes++;
		device = NULL;
		return;
	}
	device = dev_get_drvdata(&mdev.dev);
	slices_created(device);
	last_tenant = 0;
	lives++;
}

static void remove_device(void)
{
	struct vgpu_device *removed = device;

	/* Others may access it until it is known to be gone. */
	get_device(&removed->vdev.device);
	vgpu_mdev_driver.remove(&mdev);
	device = NULL;
	slices_removed();
	put_device(&removed->vdev.device);
}

static void open_device(void)
{
	u64 tenant;

	opens++;
	if (device->vdev.ops->open_device(&device->vdev)) {
		REQUIRE(sim_has_failed);
		refused_opens++;
		return;
	}
	opened = true;
	slices_opened();
	tenant = device->tenant ? device->tenant->id : 0;
	guest_begin(device);
	vmm_opened(device, tenant != last_tenant);
	last_tenant = tenant;
}

/* The engine lends: processes and guests of several slices. */
static void share(void)
{
	bound_step();
	slices_step();
}

static void live(unsigned int steps)
{
	while (steps-- && (sim_input_left || lending)) {
		if (!device)
			create();
		else if (!opened)
			sim_one_in(4) ? configure() : open_device();
		else if (sim_one_in(40))
			configure();
		else if (sim_one_in(80))
			close_device();
		else if (sim_one_in(200))
			sim_one_in(2) ? set_chunk() : have_a_neighbour();
		else if (lending && sim_below(8))
			share();
		else
			vmm_step();
		if (device && sim_one_in(150))
			remove_device();
	}
}

/* An engine that executes, or one that is lent to processes. */
static const struct vgpu_engine_ops *some_engine(void)
{
	lending = sim_below(4) == 1;
	return lending ? &vgpu_lease_engine : &vgpu_soft_engine;
}

static void run(const u8 *input, size_t bytes)
{
	static struct vgpu_parent storage;
	struct vgpu_group_params params = { .weight = 100 };
	enum vgpu_sched_field fault;
	struct sim_leaks leaks;

	sim_begin(input, bytes);
	sim_failures = 0;
	sim_has_failed = false;
	parent = &storage;
	*parent = (struct vgpu_parent){ .memory_total = 4 * MEMORY_BYTES };
	kref_init(&parent->refs);
	mutex_init(&parent->lock);
	INIT_LIST_HEAD(&parent->tenants);
	INIT_LIST_HEAD(&parent->devices);
	REQUIRE(!vgpu_rings_init());
	REQUIRE(!vgpu_executor_register());
	REQUIRE(!vgpu_engine_start(&parent->engine, some_engine(), NULL, "gpu"));
	slices_begin(parent);
	if (lending)
		bound_begin();
	params.timeslice_ns = timeslice_ns();
	mutex_lock(&parent->lock);
	REQUIRE(!vgpu_tenant_configure(parent, "blue", &params, &fault));
	mutex_unlock(&parent->lock);
	create();
	mutex_lock(&parent->lock);
	REQUIRE(!vgpu_device_assign(device, "blue", &device->params, &fault));
	mutex_unlock(&parent->lock);

	sim_failures = sim_one_in(3) ? 100 : 0;
	live(STEPS_PER_LIFE);
	sim_failures = 0;
	if (device)
		remove_device();
	slices_end();
	if (lending)
		bound_end();
	migrate_closed();
	mutex_lock(&parent->lock);
	vgpu_tenants_free(parent);
	mutex_unlock(&parent->lock);
	vgpu_engine_stop(&parent->engine);
	vgpu_executor_unregister();
	vgpu_rings_exit();
	sim_finish_work();
	REQUIRE(parent->refs.count == 1 && !parent->memory_reserved);
	leaks = sim_leaks();
	if (leaks.allocations || leaks.memcgs || leaks.eventfds || leaks.threads || leaks.timers ||
	    leaks.files || leaks.pids) {
		fprintf(stderr, "left: %lu allocations, %lu cgroups, %lu eventfds, %lu threads, %lu timers, %lu files, %lu pids\n",
			leaks.allocations, leaks.memcgs, leaks.eventfds, leaks.threads,
			leaks.timers, leaks.files, leaks.pids);
		abort();
	}
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const u8 *input, size_t bytes)
{
	run(input, bytes);
	return 0;
}
#else
static int run_files(int count, char **paths)
{
	u8 input[65536];

	for (int i = 0; i < count; i++) {
		FILE *file = fopen(paths[i], "rb");

		if (!file) {
			perror(paths[i]);
			return 1;
		}
		run(input, fread(input, 1, sizeof(input), file));
		fclose(file);
	}
	return 0;
}

int main(int argc, char **argv)
{
	u64 seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	u64 most = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;
	u8 input[4096];

	if (argc > 1 && !strcmp(argv[1], "--"))
		return run_files(argc - 2, argv + 2);
	while (vmm_counts.steps < most) {
		sim_begin((u8 *)&seed, sizeof(seed));
		seed++;
		sim_input_left = 0;
		for (size_t i = 0; i < sizeof(input); i++)
			input[i] = sim_random() >> 32;
		run(input, sizeof(input));
	}
#define COUNT(name, value) printf(", \"%s\": %lu", name, (unsigned long)(value))
	printf("{\"steps\": %lu", vmm_counts.steps);
	COUNT("lives", lives);
	COUNT("opens", opens);
	COUNT("refused_opens", refused_opens);
	COUNT("refused_probes", refused_probes);
	COUNT("neighbours", neighbours);
	COUNT("enables", vmm_counts.enables);
	COUNT("resets", vmm_counts.resets);
	COUNT("storms", vmm_counts.storms);
	COUNT("saved", vmm_counts.saved);
	COUNT("restored", vmm_counts.restored);
	COUNT("refused_streams", vmm_counts.refused_streams);
	COUNT("silent_stops", vmm_counts.silent_stops);
	COUNT("interrupts", sim_counts.interrupts);
	COUNT("opened_windows", slice_counts.opened_windows);
	COUNT("closed_windows", slice_counts.closed_windows);
	COUNT("lost_windows", slice_counts.lost_windows);
	COUNT("freed_windows", slice_counts.freed_windows);
	COUNT("bells", slice_counts.bells);
	COUNT("mapped", slice_counts.mapped);
	COUNT("raised", slice_counts.raised);
	COUNT("checked_vectors", slice_counts.checked_vectors);
	COUNT("checked_leases", slice_counts.checked_leases);
	COUNT("bound", bound_counts.bound);
	COUNT("refused_binds", bound_counts.refused);
	COUNT("events", bound_counts.events);
	COUNT("gates", bound_counts.gates);
	COUNT("served_windows", bound_counts.windows);
	COUNT("said_lost", bound_counts.lost);
	COUNT("said_closed", bound_counts.closed);
	COUNT("busy_windows", bound_counts.busy);
	COUNT("killed", bound_counts.killed);
	COUNT("bindings_ended", bound_counts.ended);
	COUNT("bindings_moved", bound_counts.moved);
	COUNT("blocked_reads", bound_counts.blocked);
	COUNT("news", bound_counts.news);
	COUNT("asked", bound_counts.asked);
	COUNT("nonsense", bound_counts.nonsense);
	COUNT("held_up", bound_counts.held_up);
	COUNT("recalled", bound_counts.recalled);
	COUNT("expired", bound_counts.expired);
	COUNT("awaited_ends", lease_counts.ends);
	COUNT("awaited_gates", lease_counts.gates);
	COUNT("awaited_turns", lease_counts.turns);
	COUNT("lease_pages", lease_counts.pages);
	COUNT("confined", lease_counts.confined);
	COUNT("descriptors", guest_counts.descriptors);
	COUNT("good", guest_counts.good);
	COUNT("completions", guest_counts.completions);
	COUNT("checked_results", guest_counts.checked_results);
	COUNT("shadows", guest_counts.shadows);
	COUNT("refused_accesses", guest_counts.refused_accesses);
	COUNT("dma_reads", sim_counts.dma_reads);
	COUNT("dma_writes", sim_counts.dma_writes);
	COUNT("timeouts", sim_counts.timeouts);
	COUNT("failed_allocations", sim_counts.failed_allocations);
	COUNT("signals", sim_counts.signals);
	COUNT("preemptions", sim_counts.preemptions);
	printf(", \"faults\": [");
	for (int error = 0; error <= VGPU_ERROR_ENGINE; error++)
		printf("%s%lu", error ? ", " : "", vmm_counts.faults[error]);
	printf("]}\n");
	return 0;
}
#endif
