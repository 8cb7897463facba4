/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is on the accelerator, and how long it lasts: all that the broker
 * uses of the scheduler's core (kmod/sched, vgpu_lease.h).  A tenant is a group with
 * one slice, whose children share its leases.
 *
 * Pure: the time is passed in, in ns of one monotonic clock, and never goes back.
 * Memory is the caller's.  Not thread safe.
 */
#ifndef VGPU_BROKER_TURNS_H
#define VGPU_BROKER_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/vgpu_lease.h"

struct turns {
	struct vgpu_sched sched;
};

/* Zeroed before it is added; must stay until it is removed. */
struct turns_party {
	struct vgpu_group group;
	struct vgpu_slice slice;
};

/**
 * struct turn - whose turn it is
 * @party: NULL for nobody's
 * @expires_ns: with @party, when it ends; UINT64_MAX while nobody else has work and
 *	no cap applies
 * @look_at_ns: with @party, when to call turns_review() if nothing happens before;
 *	without it, when to call turns_lend(); UINT64_MAX for never
 */
struct turn {
	struct turns_party *party;
	uint64_t expires_ns;
	uint64_t look_at_ns;
};

/* All that return an enum vgpu_sched_field changed nothing unless it is _NONE. */
enum vgpu_sched_field turns_init(struct turns *turns, const struct vgpu_sched_params *params,
				 uint64_t now_ns);
enum vgpu_sched_field turns_set(struct turns *turns, const struct vgpu_sched_params *params,
				uint64_t now_ns);
enum vgpu_sched_field turns_add(struct turns *turns, struct turns_party *party,
				const struct vgpu_group_params *params, uint64_t now_ns);
enum vgpu_sched_field turns_update(struct turns *turns, struct turns_party *party,
				   const struct vgpu_group_params *params, uint64_t now_ns);
/* The party's turn, if it has it, is over. */
void turns_remove(struct turns *turns, struct turns_party *party, uint64_t now_ns);

/**
 * turns_ready() - a party has work
 * @kernel_id: which is first, 0 if unknown
 * @hint_ns: how long it is said to take, 0 if unknown
 *
 * Then call turns_lend() if it is nobody's turn, else turns_review().
 */
void turns_ready(struct turns *turns, struct turns_party *party, uint32_t kernel_id,
		 uint64_t hint_ns, uint64_t now_ns);

/* A party that waits for its turn has no work any more. */
void turns_sleep(struct turns *turns, struct turns_party *party, uint64_t now_ns);

/* It is nobody's turn: whose is it from now on? */
void turns_lend(struct turns *turns, uint64_t now_ns, struct turn *out);

/* It is somebody's turn: when does it end, as things are now?  One that has ended stays so. */
void turns_review(struct turns *turns, uint64_t now_ns, struct turn *out);

/**
 * turns_yield() - the turn of a party is over: nothing of its work is under way
 * @flags: VGPU_YIELD_*; with _WANT the next two are as in turns_ready(), else
 *	@kernel_id is what ran last
 */
void turns_yield(struct turns *turns, struct turns_party *party, uint32_t flags,
		 uint32_t kernel_id, uint64_t hint_ns, uint64_t now_ns);

/**
 * turns_pass() - the time until now passes
 * @unused_ns: of the time since the last call, so much whose turn it is did not use,
 *	and does not pay if the turn has no end
 */
void turns_pass(struct turns *turns, uint64_t unused_ns, uint64_t now_ns);

/* A party pays for @ns of the accelerator that it used outside its turns. */
void turns_owe(struct turns *turns, struct turns_party *party, uint64_t ns, uint64_t now_ns);

/* What a party has had of the accelerator, ever; debts do not count. */
uint64_t turns_had_ns(const struct turns_party *party);

/* The name of the configuration's field that the core refuses; "" for NONE. */
const char *turns_field_name(enum vgpu_sched_field field);

#endif /* VGPU_BROKER_TURNS_H */
