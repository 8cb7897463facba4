// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * The policy of Intel GVT-g's time based scheduler (linux,
 * drivers/gpu/drm/i915/gvt/sched_policy.c), as in vgpumgr/sim/native/gvt_g.c.  A
 * tick of 1 ms chooses the first client in LRU order that has work and time left.
 * The engine switches to it when its present item is done, and idles if no client
 * qualifies.  Every 100 ticks, each client gets 100 ms * weight / sum of weights in
 * addition to its time left; every tenth time, this replaces the time left.
 * Missed ticks are processed when the engine asks what to execute, because a busy
 * engine cannot act on a tick before that.
 *
 * Replaces vgpu_queue_pick() of queue.c, and wraps vgpu_sched_pick() of run.c and
 * vgpu_group_add() and vgpu_group_remove() of group.c.  Works for one engine.
 */
#include "internal.h"

#define TICK_NS			1000000ull
#define TICKS_PER_BALANCE	100u
#define BALANCES_PER_RESET	10u
#define CLIENTS_MAX		64u

struct gvt_client {
	struct vgpu_entity *entity;
	s64 left_ns;
	s64 allocated_ns;
	u64 last_chosen;
};

static struct {
	const struct vgpu_queue *queue;
	struct gvt_client clients[CLIENTS_MAX];
	struct vgpu_entity *current_entity;
	struct vgpu_entity *next;
	bool has_target;		/* next is decided, even if it is NULL */
	u64 since_ns;
	u64 tick_at_ns;
	u64 ticks;
	u64 balances;
	u64 lru_seq;
} gvt;

enum vgpu_sched_field core_group_add(struct vgpu_sched *sched, struct vgpu_group *group,
				     const struct vgpu_group_params *params, u64 now_ns);
enum vgpu_sched_field core_group_remove(struct vgpu_sched *sched, struct vgpu_group *group,
					u64 now_ns);
enum vgpu_sched_field core_sched_pick(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_decision *out);

static struct gvt_client *client_of(const struct vgpu_entity *entity)
{
	u32 i;

	for (i = 0; i < CLIENTS_MAX; i++)
		if (gvt.clients[i].entity == entity)
			return &gvt.clients[i];
	return NULL;
}

static void balance(void)
{
	bool reset = gvt.balances++ % BALANCES_PER_RESET == 0;
	u64 total = 0;
	u32 i;

	for (i = 0; i < CLIENTS_MAX; i++)
		if (gvt.clients[i].entity)
			total += gvt.clients[i].entity->weight;
	for (i = 0; i < CLIENTS_MAX; i++) {
		struct gvt_client *client = &gvt.clients[i];

		if (!client->entity)
			continue;
		if (reset) {
			client->allocated_ns = div64_u64(TICKS_PER_BALANCE * TICK_NS, total) *
					       client->entity->weight;
			client->left_ns = 0;
		}
		client->left_ns += client->allocated_ns;
	}
}

static struct gvt_client *least_recently_chosen(void)
{
	struct gvt_client *found = NULL;
	u32 i;

	for (i = 0; i < CLIENTS_MAX; i++) {
		struct gvt_client *client = &gvt.clients[i];

		if (!client->entity || !client->entity->ready || client->left_ns <= 0)
			continue;
		if (!found || client->last_chosen < found->last_chosen)
			found = client;
	}
	return found;
}

static void tick(void)
{
	struct gvt_client *client;

	gvt.tick_at_ns += TICK_NS;
	if (gvt.ticks++ % TICKS_PER_BALANCE == 0)
		balance();
	if (gvt.has_target)
		return;
	client = least_recently_chosen();
	gvt.has_target = true;
	gvt.next = client ? client->entity : NULL;
	if (client)
		client->last_chosen = ++gvt.lru_seq;
}

/* Switch to the next client; the engine executes nothing now. */
static void change_hands(u64 now_ns)
{
	if (gvt.current_entity)
		client_of(gvt.current_entity)->left_ns -= (s64)(now_ns - gvt.since_ns);
	gvt.since_ns = now_ns;
	gvt.current_entity = gvt.next;
	gvt.has_target = false;
}

enum vgpu_sched_field vgpu_group_add(struct vgpu_sched *sched, struct vgpu_group *group,
				     const struct vgpu_group_params *params, u64 now_ns)
{
	enum vgpu_sched_field fault = VGPU_FIELD_WEIGHT;
	struct gvt_client *client = client_of(NULL);

	if (client)
		fault = core_group_add(sched, group, params, now_ns);
	if (!fault)
		*client = (struct gvt_client){ .entity = &group->entity };
	return fault;
}

enum vgpu_sched_field vgpu_group_remove(struct vgpu_sched *sched, struct vgpu_group *group,
					u64 now_ns)
{
	enum vgpu_sched_field fault = core_group_remove(sched, group, now_ns);

	if (fault)
		return fault;
	client_of(&group->entity)->entity = NULL;
	if (gvt.current_entity == &group->entity)
		gvt.current_entity = NULL;
	if (gvt.next == &group->entity)
		gvt.next = NULL;
	return VGPU_FIELD_NONE;
}

struct vgpu_entity *vgpu_queue_pick(const struct vgpu_queue *queue)
{
	if (queue != gvt.queue)
		return NULL;	/* any slice of the group will do */
	return gvt.current_entity && gvt.current_entity->ready ? gvt.current_entity : NULL;
}

enum vgpu_sched_field vgpu_sched_pick(struct vgpu_sched *sched, u64 now_ns,
				      struct vgpu_decision *out)
{
	enum vgpu_sched_field fault;

	gvt.queue = &sched->queue;
	if (!gvt.tick_at_ns)
		gvt.tick_at_ns = now_ns;
	while (!vgpu_before(now_ns, gvt.tick_at_ns))
		tick();
	/* A run ends when the first item after a tick ends. */
	sched->run_timeslice_ns = gvt.has_target ? 0 : U64_MAX;
	if (gvt.has_target)
		change_hands(now_ns);
	fault = core_sched_pick(sched, now_ns, out);
	if (!out->slice && sched->queue.nr_ready)
		out->wake_at_ns = vgpu_earlier(gvt.tick_at_ns, now_ns + TICK_NS);
	return fault;
}
