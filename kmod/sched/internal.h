/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* Shared among the files of the scheduler core only. */
#ifndef VGPU_SCHED_INTERNAL_H
#define VGPU_SCHED_INTERNAL_H

#include "vgpu_lease.h"

/*
 * Clock and virtual time both wrap, so they are compared by their difference,
 * which is right as long as the two values are less than 2^63 apart.
 */
static inline bool vgpu_before(u64 a, u64 b)
{
	return (s64)(a - b) < 0;
}

static inline u64 vgpu_earlier(u64 a, u64 b)
{
	return vgpu_before(a, b) ? a : b;
}

/* An overdraft of more than three days counts as three days. */
#define OVERDRAFT_MAX_NS	(1ull << 48)

/* Does an idle slice keep its turn? */
static inline bool vgpu_has_ghosts(const struct vgpu_sched *sched)
{
	return sched->params.policy != VGPU_POLICY_BEST_EFFORT;
}

/* tree.c: a balanced tree that knows the best rank below a key */
void vgpu_tree_insert(struct vgpu_node **root, struct vgpu_node *node);
void vgpu_tree_erase(struct vgpu_node **root, struct vgpu_node *node);
struct vgpu_node *vgpu_tree_first(struct vgpu_node *root);
struct vgpu_node *vgpu_tree_best(struct vgpu_node *root, u64 max_key);

/* bucket.c: a cap */
void vgpu_bucket_init(struct vgpu_bucket *bucket, u64 now_ns);
void vgpu_bucket_configure(struct vgpu_bucket *bucket, u64 cap_ns,
			   u64 period_ns, u64 burst_ns);
void vgpu_bucket_refill(struct vgpu_bucket *bucket, u64 now_ns);
void vgpu_bucket_use(struct vgpu_bucket *bucket, u64 ns);
bool vgpu_bucket_is_empty(const struct vgpu_bucket *bucket);
u64 vgpu_bucket_wait_ns(const struct vgpu_bucket *bucket, u64 credit_ns);
u64 vgpu_bucket_lasts_ns(const struct vgpu_bucket *bucket);

/* queue.c: EEVDF among the entities of one level */
void vgpu_queue_init(struct vgpu_queue *queue, u64 overrun_ns);
void vgpu_entity_init(const struct vgpu_queue *queue, struct vgpu_entity *entity,
		      u32 weight, u64 timeslice_ns);
void vgpu_queue_add(struct vgpu_queue *queue, struct vgpu_entity *entity);
void vgpu_queue_remove(struct vgpu_queue *queue, struct vgpu_entity *entity);
bool vgpu_queue_set_ready(struct vgpu_queue *queue, struct vgpu_entity *entity,
			  bool ready);
void vgpu_queue_set_weight(struct vgpu_queue *queue, struct vgpu_entity *entity,
			   u32 weight);
void vgpu_queue_set_timeslice(struct vgpu_queue *queue,
			      struct vgpu_entity *entity, u64 timeslice_ns);
void vgpu_queue_charge(struct vgpu_queue *queue, struct vgpu_entity *entity,
		       u64 ns);
struct vgpu_entity *vgpu_queue_pick(const struct vgpu_queue *queue);
void vgpu_queue_put(struct vgpu_queue *queue, struct vgpu_entity *entity,
		    bool request_done);
void vgpu_queue_resume(struct vgpu_queue *queue, struct vgpu_entity *entity);
void vgpu_queue_owe(struct vgpu_queue *queue, struct vgpu_entity *entity,
		    u64 ns);
bool vgpu_queue_repicks(struct vgpu_queue *queue, struct vgpu_entity *entity);
bool vgpu_queue_keeps(struct vgpu_queue *queue, struct vgpu_entity *entity,
		      u64 ns);
s64 vgpu_queue_lag_ns(const struct vgpu_queue *queue,
		      const struct vgpu_entity *entity);

/* reserve.c: admission to band L, and what is left of each budget */
enum vgpu_sched_field
vgpu_reserve_check(const struct vgpu_sched *sched,
		   const struct vgpu_group *group,
		   const struct vgpu_group_params *params);
enum vgpu_sched_field
vgpu_reserve_check_engine(const struct vgpu_sched *sched,
			  const struct vgpu_sched_params *params);
void vgpu_reserve_admit(struct vgpu_sched *sched, struct vgpu_group *group);
void vgpu_reserve_dismiss(struct vgpu_sched *sched, struct vgpu_group *group);
void vgpu_reserve_wake(struct vgpu_group *group, u64 now_ns);
void vgpu_reserve_refresh(struct vgpu_sched *sched, struct vgpu_group *group);
void vgpu_reserve_replenish(struct vgpu_sched *sched);
void vgpu_reserve_use(struct vgpu_sched *sched, struct vgpu_group *group, u64 ns);
void vgpu_reserve_configure(struct vgpu_sched *sched, struct vgpu_group *group,
			    bool kept);

/* predict.c: what a group's kernels are expected to do */
void vgpu_predict_learn_duration(struct vgpu_group *group, u32 kernel_id, u64 ns);
void vgpu_predict_learn_gap(struct vgpu_group *group, u32 kernel_id, u64 ns);
u64 vgpu_predict_fill_ns(const struct vgpu_group *group, u32 kernel_id,
			 u64 elapsed_ns, u64 inversion_ns);
u64 vgpu_predict_gap_ns(const struct vgpu_group *group, u32 kernel_id,
			u64 elapsed_ns, u64 *longest_ns);

/* hold.c: holding the engine between two items of one request */
void vgpu_hold_configure(struct vgpu_sched *sched, struct vgpu_group *group);
void vgpu_hold_begin(struct vgpu_sched *sched, struct vgpu_slice *slice);
void vgpu_hold_bound(struct vgpu_sched *sched);
void vgpu_hold_pause(struct vgpu_sched *sched);
void vgpu_hold_review(struct vgpu_sched *sched);
void vgpu_hold_charge(struct vgpu_sched *sched, u64 ns);
u64 vgpu_hold_allows_ns(const struct vgpu_sched *sched,
			const struct vgpu_slice *slice);
struct vgpu_group *vgpu_hold_filler(struct vgpu_sched *sched);
void vgpu_hold_resume(struct vgpu_sched *sched);
u64 vgpu_hold_wake_at_ns(const struct vgpu_sched *sched);

/* ghost.c: turns that no other slice may use */
u64 vgpu_ghost_timeslice_ns(const struct vgpu_sched *sched);
void vgpu_ghost_init(struct vgpu_sched *sched);
void vgpu_ghost_weigh(struct vgpu_sched *sched, struct vgpu_group *group);
u64 vgpu_ghost_park(struct vgpu_sched *sched, u64 ns);

/* lease.c: the engine, lent until a given time */
static inline bool vgpu_lease_is_open(const struct vgpu_sched *sched)
{
	return sched->loan.lent && sched->loan.open;
}

/* Report the last run that has ended, but only once. */
static inline void vgpu_run_report(struct vgpu_sched *sched,
				   struct vgpu_ended_run *ended)
{
	*ended = sched->ended;
	sched->ended.valid = false;
}

u64 vgpu_lease_runs(const struct vgpu_sched *sched, u64 now_ns, u64 *end_ns);
void vgpu_lease_renew(struct vgpu_sched *sched, u64 runs);
void vgpu_lease_recall(struct vgpu_sched *sched);

/* run.c: the owner of the engine */
struct vgpu_slice *vgpu_first_slice(const struct vgpu_group *group);
void vgpu_review_caps(struct vgpu_sched *sched);
u64 vgpu_run_left_ns(const struct vgpu_sched *sched);
u64 vgpu_funds_ns(const struct vgpu_sched *sched, const struct vgpu_slice *slice);
struct vgpu_group *vgpu_first_of_latency(const struct vgpu_sched *sched);
bool vgpu_run_is_due_to_others(const struct vgpu_sched *sched);
void vgpu_decide(struct vgpu_sched *sched, struct vgpu_decision *out);
void vgpu_run_renew(struct vgpu_sched *sched, enum vgpu_run_reason reason,
		    u64 runs, enum vgpu_band band);
void vgpu_run_end(struct vgpu_sched *sched, enum vgpu_run_reason reason);

/* group.c: groups and slices, and whether they can be picked */
enum vgpu_sched_field vgpu_slice_fault(const struct vgpu_sched *sched,
				       const struct vgpu_slice *slice);
void vgpu_slice_set_item(struct vgpu_sched *sched, struct vgpu_slice *slice,
			 bool has_item);
void vgpu_slice_refresh(struct vgpu_sched *sched, struct vgpu_slice *slice);
void vgpu_slice_follow_group(struct vgpu_sched *sched,
			     struct vgpu_slice *slice);
void vgpu_slice_end_gap(struct vgpu_sched *sched, struct vgpu_slice *slice);
void vgpu_slice_describe(struct vgpu_sched *sched, struct vgpu_slice *slice,
			 const struct vgpu_item_info *item);
void vgpu_slice_overdraw(struct vgpu_sched *sched, struct vgpu_slice *slice,
			 u64 ns);
void vgpu_throttle(struct vgpu_sched *sched, struct vgpu_bucket *bucket);
void vgpu_throttle_over(struct vgpu_sched *sched, struct vgpu_node *timer);

#endif /* VGPU_SCHED_INTERNAL_H */
