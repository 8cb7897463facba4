// SPDX-License-Identifier: Apache-2.0
/* Makes the accesses that the lease machine requests. */
#include <time.h>

#include "executor/child/child.h"

uint64_t vgpu_child_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

enum vgpu_lease_result vgpu_child_lease(struct vgpu_child *child,
					enum vgpu_lease_operation operation)
{
	const struct vgpu_lease_page *lease = child->lease_page;
	struct vgpu_stream_page *stream = child->stream_page;
	uint64_t loaded = 0, now_ns = vgpu_child_now_ns();

	/*
	 * The stream has been dry since the last piece ended, which the main loop may notice a
	 * little later.
	 */
	if (operation == VGPU_LEASE_DRY && child->outlook.ended_ns > child->lease.now_ns &&
	    child->outlook.ended_ns < now_ns)
		now_ns = child->outlook.ended_ns;
	child->lease.kernel_id = child->outlook.kernel_id;
	child->lease.hint_ns = child->outlook.hint_ns;
	vgpu_lease_begin(&child->lease, operation, now_ns, 0);
	for (;;) {
		struct vgpu_lease_step step = vgpu_lease_next(&child->lease, loaded);

		switch (step.access) {
		case VGPU_LEASE_LOAD_WAKE:
			loaded = atomic_load_explicit(&lease->wake, memory_order_acquire);
			break;
		case VGPU_LEASE_LOAD_LEASE:
			loaded = atomic_load_explicit(&lease->lease, memory_order_acquire);
			break;
		case VGPU_LEASE_LOAD_BEGUN:
			loaded = atomic_load_explicit(&lease->begun_ns, memory_order_acquire);
			break;
		case VGPU_LEASE_LOAD_EXPIRES:
			loaded = atomic_load_explicit(&lease->expires_ns, memory_order_acquire);
			break;
		case VGPU_LEASE_LOAD_GENERATION:
			loaded = atomic_load_explicit(&lease->generation, memory_order_acquire);
			break;
		case VGPU_LEASE_STORE_STATE:
			atomic_store_explicit(&stream->state, step.value, memory_order_release);
			break;
		case VGPU_LEASE_STORE_DRY_SINCE:
			atomic_store_explicit(&stream->dry_since_ns, step.value,
					      memory_order_release);
			break;
		case VGPU_LEASE_STORE_IDLE:
			atomic_store_explicit(&stream->idle_ns, step.value, memory_order_release);
			break;
		case VGPU_LEASE_BARRIER:
			atomic_thread_fence(memory_order_seq_cst);
			break;
		case VGPU_LEASE_SEND:
			child->arbiter->send(&step.request);
			break;
		case VGPU_LEASE_RESULT:
			if (step.result == VGPU_LEASE_RESET)
				vgpu_child_end("the slice was reset");
			return step.result;
		}
	}
}
