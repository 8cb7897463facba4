// SPDX-License-Identifier: Apache-2.0
/*
 * Random tenants, programs and changes on every scheduler, for a build with
 * sanitizers: random_simulations SEED SIMULATIONS.  Prints the first sum that is
 * not exact and exits with 1.
 */
#include <stdio.h>
#include <stdlib.h>

#include "schedulers.h"

#define KERNELS_MAX	8
#define SLICES_MAX	24

static u64 state;

static u64 draw(u64 least, u64 most)
{
	state = state * 6364136223846793005ull + 1442695040888963407ull;
	return least + (state >> 33) % (most - least + 1);
}

/* A slice's arrays, which live until the simulation ends. */
struct arrays {
	u64 work_ns[KERNELS_MAX], launch_ns[KERNELS_MAX], sync_ns[KERNELS_MAX];
	u64 hint_ns[KERNELS_MAX], think_ns[KERNELS_MAX], arrivals_ns[KERNELS_MAX];
	u32 kernel_id[KERNELS_MAX], request_first[KERNELS_MAX + 1];
	unsigned char sync[KERNELS_MAX], claims[KERNELS_MAX];
};

static struct sim_program make_program(struct arrays *arrays, u64 now_ns)
{
	u32 i, kernels = draw(1, KERNELS_MAX), requests = draw(1, kernels);
	u64 arrival_ns = now_ns;

	for (i = 0; i < kernels; i++) {
		arrays->work_ns[i] = draw(1000, 400000);
		arrays->launch_ns[i] = draw(0, 1) ? 0 : draw(0, 100000);
		arrays->sync_ns[i] = draw(0, 50000);
		arrays->hint_ns[i] = draw(0, 400000);
		arrays->think_ns[i] = draw(0, 300000);
		arrays->kernel_id[i] = draw(0, 200);
		arrays->sync[i] = draw(0, 1);
		arrays->claims[i] = draw(0, 3);
		arrays->request_first[i] = i;
		arrival_ns += draw(0, 500000);
		arrays->arrivals_ns[i] = arrival_ns;
	}
	arrays->request_first[requests] = kernels;
	return (struct sim_program){
		.nr_kernels = kernels,
		.work_ns = arrays->work_ns,
		.launch_ns = arrays->launch_ns,
		.sync_ns = arrays->sync_ns,
		.hint_ns = arrays->hint_ns,
		.kernel_id = arrays->kernel_id,
		.sync = arrays->sync,
		.claims = arrays->claims,
		.nr_requests = requests,
		.request_first = arrays->request_first,
		.think_ns = arrays->think_ns,
		.arrivals_ns = arrays->arrivals_ns,
		.is_open = draw(0, 3) == 0,
		.endless = draw(0, 3) == 0,
		.count = draw(0, kernels),
		.start_ns = draw(0, 1) ? 0 : now_ns + draw(0, 1000000),
		.queue_depth = draw(1, 9),
		.work_jitter_permille = draw(0, 250),
		.host_jitter_permille = draw(0, 250),
	};
}

static struct vgpu_group_params make_group(void)
{
	struct vgpu_group_params params = {
		.weight = draw(1, 10),
		.timeslice_ns = draw(300000, 3000000),
	};

	if (draw(0, 2) == 0) {
		params.cap_period_ns = 10000000;
		params.cap_ns = draw(100000, 10000000);
	}
	return params;
}

static void change(struct sim *sim, struct arrays *arrays)
{
	struct vgpu_slice_params slice_params = { .weight = draw(1, 5) };
	struct vgpu_group_params group_params = make_group();
	struct sim_program program;
	u32 group, slice;

	if (!sim->nr_groups || draw(0, 5) == 0) {
		sim_add_group(sim, &group_params, draw(0, 2));
		return;
	}
	group = draw(0, sim->nr_groups - 1);
	slice = draw(0, SLICES_MAX - 1);
	if (sim->groups[group]->removed)
		return;
	if (sim->nr_slices < SLICES_MAX && draw(0, 1)) {
		program = make_program(&arrays[sim->nr_slices], sim->now_ns);
		sim_add_slice(sim, group, &slice_params, &program);
	} else if (slice < sim->nr_slices && !sim->slices[slice]->removed) {
		switch (draw(0, 3)) {
		case 0:
			sim_remove_slice(sim, slice);
			break;
		case 1:
			sim_update_slice(sim, slice, &slice_params);
			break;
		default:
			sim_park_slice(sim, slice, draw(0, 1));
		}
	} else if (draw(0, 2)) {
		sim_update_group(sim, group, &group_params, draw(0, 2));
	} else {
		sim_remove_group(sim, group);
	}
}

static bool adds_up(const struct sim *sim)
{
	u64 sum_ns = sim->counters.idle_ns;
	const struct sim_slice_counters *counters;
	u32 i;

	for (i = 0; i < sim->nr_slices; i++) {
		counters = &sim->slices[i]->counters;
		sum_ns += counters->work_ns + counters->overhead_ns + counters->hold_ns;
	}
	return sum_ns == sim->now_ns;
}

static bool simulate(const struct sim_scheduler *scheduler)
{
	static struct arrays arrays[SLICES_MAX];
	struct sim_model model = {
		.kind = draw(SIM_NON_PREEMPTIBLE, SIM_PREEMPTIBLE),
		.max_chunk_ns = draw(400000, 2000000),
		.min_chunk_ns = draw(1000, 20000),
		.switch_cost_ns = draw(0, 15000),
	};
	u64 parameters[SIM_PARAMETERS_MAX] = { 0 };
	struct sim *sim;
	bool good = true;
	int i, error;

	for (i = 0; scheduler->parameters && scheduler->parameters[i].name; i++)
		parameters[i] = scheduler->parameters[i].preset;
	sim = sim_new(&model, scheduler, parameters, draw(0, 9), &error);
	if (!sim)
		return false;
	sim->record_runs = true;
	sim->record_items = true;
	for (i = 0; i < 60 && good; i++) {
		change(sim, arrays);
		good = !sim_run(sim, sim->now_ns + draw(0, 2000000)) && adds_up(sim);
	}
	if (good)
		good = !sim_run(sim, sim->now_ns + 500000000ull) && adds_up(sim);
	if (!good)
		printf("%s: at %llu ns the sums do not add up\n", scheduler->name,
		       (unsigned long long)sim->now_ns);
	sim_free(sim);
	return good;
}

int main(int argc, char **argv)
{
	long i, simulations;
	int j;

	if (argc != 3)
		return 2;
	state = strtoull(argv[1], NULL, 10);
	simulations = strtol(argv[2], NULL, 10);
	for (i = 0; i < simulations; i++)
		for (j = 0; sim_schedulers[j]; j++)
			if (!simulate(sim_schedulers[j]))
				return 1;
	return 0;
}
