/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose turn it is on the accelerator: all that the broker uses of the scheduler's
 * core (kmod/sched).  A tenant is a group with one slice, whose children share
 * its turns.
 *
 * Pure: the time is passed in, in ns of one monotonic clock, and never goes back.
 * Memory is the caller's.  Not thread safe.
 */
#ifndef VGPU_BROKER_TURNS_H
#define VGPU_BROKER_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/vgpu_sched.h"

struct turns {
	struct vgpu_sched sched;
};

/* Zeroed before it is added; must stay until it is removed. */
struct turns_party {
	struct vgpu_group group;
	struct vgpu_slice slice;
};

/**
 * struct turn - what turns_next() decided
 * @party: whose turn it is, NULL for nobody's
 * @limit_ns: with @party, for how long
 * @look_at_ns: without @party, when to decide again if nothing happens before;
 *	UINT64_MAX for never
 */
struct turn {
	struct turns_party *party;
	uint64_t limit_ns;
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
 */
void turns_ready(struct turns *turns, struct turns_party *party, uint32_t kernel_id,
		 uint64_t hint_ns, uint64_t now_ns);

/**
 * turns_done() - a party's work is done, as far as it was submitted
 * @more: none is left, and more follows soon: hold the accelerator for it
 * @kernel_id: with @more, which kernel ran last
 */
void turns_done(struct turns *turns, struct turns_party *party, bool more, uint32_t kernel_id,
		uint64_t now_ns);

/* A party's work is done, as far as it was submitted, and it has more; as turns_ready(). */
void turns_again(struct turns *turns, struct turns_party *party, uint32_t kernel_id,
		 uint64_t hint_ns, uint64_t now_ns);

/* A party's work was withdrawn, or nothing follows after @more. */
void turns_sleep(struct turns *turns, struct turns_party *party, uint64_t now_ns);
void turns_end_request(struct turns *turns, struct turns_party *party, uint64_t now_ns);

/**
 * turns_charge() - charge the time since the last call to whose turn it is
 * @idle_ns: of that time, so much the party did not use and does not pay
 */
void turns_charge(struct turns *turns, uint64_t idle_ns, uint64_t now_ns);

/* The accelerator is drained, or idle: whose turn is it from now on? */
void turns_next(struct turns *turns, uint64_t now_ns, struct turn *out);

/* How much of the present turn is left; 0 if nothing is, or it is nobody's. */
uint64_t turns_left_ns(const struct turns *turns);

/* For how long the party's cap lets it go on; UINT64_MAX for ever. */
uint64_t turns_cap_lasts_ns(const struct turns_party *party);

/* Does anybody but @party have work, be it throttled or not? */
bool turns_has_rival(const struct turns *turns, const struct turns_party *party);

/* Must the present turn be cut for somebody who became ready? */
bool turns_is_urgent(const struct turns *turns);

/* Whose turn it is pays for @ns that it used outside its turns. */
void turns_fine(struct turns *turns, uint64_t ns);

/* The name of the configuration's field that the core refuses; "" for NONE. */
const char *turns_field_name(enum vgpu_sched_field field);

#endif /* VGPU_BROKER_TURNS_H */
