/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An accelerator without a PCI function, with an engine whose items take as
 * long as a test specifies. All code between accelerator and engine is the
 * module's own.
 */
#ifndef VGPU_KUNIT_MOCK_H
#define VGPU_KUNIT_MOCK_H

#include <kunit/test.h>

#include "engine/engine.h"
#include "engine/ring.h"

#define MOCK_TIMESLICE_US	1000

/**
 * struct mock - one accelerator
 * @parent: the tested object; in no list and on no bus
 * @device: a slice of @parent, unpublished
 * @worker: stands in for a ring's worker: it only sleeps
 * @entered: the engine began to execute
 * @go: the engine may continue, once for each completion
 * @waits: each execution waits for @go
 * @lasts_ns: the predicted time of an execution, 0 for unknown
 * @wedges: each execution finds that the hardware does not answer
 * @late_us: how much later than an item's end the thread notices that end
 * @until_ns: when the execution ended; valid with @late_us
 * @executed: number of executions
 * @limit_ns: the last limit passed
 */
struct mock {
	struct vgpu_parent parent;
	struct vgpu_device device;
	struct task_struct *worker;
	struct completion entered;
	struct completion go;
	bool waits;
	u64 lasts_ns;
	bool wedges;
	unsigned int late_us;
	u64 until_ns;
	unsigned int executed;
	u64 limit_ns;
};

/*
 * Callbacks for kunit_suite.init and .exit. The mock is stored in test->priv.
 */
int mock_init(struct kunit *test);
void mock_exit(struct kunit *test);

void mock_device_init(struct mock *mock, struct vgpu_device *device);
void mock_schedule(struct kunit *test, struct mock *mock, struct vgpu_device *device);
struct vgpu_ring *mock_ring(struct kunit *test, struct vgpu_device *device);
void mock_submit(struct kunit *test, struct vgpu_ring *ring, u32 number);
unsigned int mock_count(struct mock *mock, const struct list_head *list);
bool mock_wait(bool (*condition)(void *data), void *data);

#endif /* VGPU_KUNIT_MOCK_H */
