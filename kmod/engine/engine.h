/* SPDX-License-Identifier: GPL-2.0 */
#ifndef VGPU_ENGINE_H
#define VGPU_ENGINE_H

#include "vgpu.h"

struct vgpu_child;
struct vgpu_exec_gate;

/*
 * The most that an item is charged for the time until its end is noticed and the
 * next item is decided.
 */
#define VGPU_ENGINE_NOTICE_NS	(50 * NSEC_PER_USEC)

int vgpu_engine_start(struct vgpu_engine *engine, const struct vgpu_engine_ops *ops,
		      struct pci_dev *pdev, const char *name);
void vgpu_engine_stop(struct vgpu_engine *engine);
struct vgpu_sched_params vgpu_engine_params(struct vgpu_engine *engine);
enum vgpu_sched_field vgpu_engine_configure(struct vgpu_engine *engine,
					    const struct vgpu_sched_params *params);
int vgpu_engine_change(struct vgpu_engine *engine, const struct vgpu_engine_ops *ops,
		       struct pci_dev *pdev);
void vgpu_engine_wedge(struct vgpu_engine *engine);
void vgpu_engine_stops(struct vgpu_engine *engine, u64 until_ns);
void vgpu_engine_busy_until(struct vgpu_engine *engine, u64 until_ns);
void vgpu_engine_kick(struct vgpu_engine *engine);
void vgpu_engine_resume(struct vgpu_engine *engine, struct vgpu_ring *ring, u64 now_ns);
void vgpu_engine_trace_hold(struct vgpu_engine *engine);
u64 vgpu_engine_advance(struct vgpu_engine *engine, u64 now_ns);
u64 vgpu_engine_settle(struct vgpu_engine *engine, struct vgpu_group *group, u64 now_ns);

/**
 * struct vgpu_reports - calls from an engine, or a slice's work, to higher layers
 * @start: an engine starts and may report events; 0 or -ENOMEM
 * @stop: the engine has ended
 * @decided: the engine's scheduler has decided; @before: the previous owner of
 *	the engine; engine->lock held
 * @raise: interrupt the guest of a slice
 * @fault: stop a slice whose guest made a mistake; may sleep, does not wait
 * @note_error: record why a slice has stopped although its guest made no mistake;
 *	engine->lock held
 *
 * These are the only calls from engine/ to function/ and control/.
 * control/reports.c lists the functions that they call.
 */
struct vgpu_reports {
	int (*start)(struct vgpu_engine *engine);
	void (*stop)(struct vgpu_engine *engine);
	void (*decided)(struct vgpu_engine *engine, struct vgpu_slice *before,
			const struct vgpu_decision *decision);
	void (*raise)(struct vgpu_device *device, unsigned int vector);
	void (*fault)(struct vgpu_device *device, struct vgpu_ring *ring, u32 error, u32 index);
	bool (*note_error)(struct vgpu_device *device, u32 error, u32 index);
};

extern const struct vgpu_reports vgpu_reports;

/* leaving.c */
void vgpu_device_unschedule(struct vgpu_device *device, u64 now_ns);	/* engine->lock held */

/* engines.c */
extern struct dentry *vgpu_debugfs;
extern const struct vgpu_engine_ops *vgpu_engine_default;
const struct vgpu_engine_ops *vgpu_engine_find(const char *name);
bool vgpu_engine_suits(const struct vgpu_engine_ops *ops, const struct vgpu_parent *parent);
ssize_t vgpu_engines_show(const struct vgpu_parent *parent, char *text);

extern const struct vgpu_engine_ops vgpu_soft_engine;
extern const struct vgpu_engine_ops vgpu_edu_engine;
extern const struct vgpu_engine_ops vgpu_lease_engine;

/* lending.c: engine->lock held, except for the first two */
void vgpu_lending_init(struct vgpu_engine *engine);
void vgpu_lending_begin(struct vgpu_engine *engine, u64 now_ns);
void vgpu_lending_add(struct vgpu_device *device, u64 now_ns);
void vgpu_lending_remove(struct vgpu_device *device, u64 now_ns);
void vgpu_lending_attach(struct vgpu_child *child, bool want, u64 now_ns);
void vgpu_lending_detach(struct vgpu_child *child, u64 now_ns);
bool vgpu_lending_request(struct vgpu_child *child, const struct vgpu_stream_request *request,
			  u64 now_ns);
void vgpu_lending_gate_answer(struct vgpu_device *device, const struct vgpu_exec_gate *gate,
			      u64 now_ns);
void vgpu_lending_gate_is_gone(struct vgpu_device *device, u64 now_ns);

static inline bool vgpu_engine_executes(const struct vgpu_engine *engine, u16 op)
{
	return op < 32 && engine->ops->operations & BIT(op);
}

static inline struct vgpu_device *vgpu_slice_to_device(const struct vgpu_slice *slice)
{
	return container_of((struct vgpu_slice *)slice, struct vgpu_device, slice);
}

static inline struct vgpu_tenant *vgpu_group_to_tenant(struct vgpu_group *group)
{
	return container_of(group, struct vgpu_tenant, group);
}

/* The scheduler clears ->throttled late, only when a party wants the engine again. */
static inline bool vgpu_bucket_is_throttled(const struct vgpu_bucket *bucket, u64 now_ns)
{
	return bucket->throttled && (s64)(now_ns - bucket->timer.key) < 0;
}

#endif /* VGPU_ENGINE_H */
