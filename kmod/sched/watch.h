/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How much processor time a party's children use outside their leases.
 *
 * Where the accelerator is the host's processors (PoCL), a child can compute
 * without a lease.  Its supervisor says now and then how much processor time all
 * children have used.  The party pays for what exceeds the processors' time during
 * their leases.  A small part is free, because a child needs it to take requests.
 *
 * The excess is also taken from an allowance.  Once that is used up the party has
 * committed an offence.  So over any time the children use at most what their leases
 * and the allowance are worth, plus what they use between two looks.
 *
 * Nobody looks while nobody else has work.  A look after a long pause therefore
 * charges for two ordinary intervals only, at the pause's mean rate.
 *
 * Pure; not thread safe.
 */
#ifndef VGPU_SCHED_WATCH_H
#define VGPU_SCHED_WATCH_H

#include "port.h"

/**
 * struct vgpu_watch_settings - what is allowed
 * @processors: how many the accelerator is; 0: processor time says nothing
 * @free_permille: of one processor, outside leases, costs nothing; what a second
 *	earns of it can be saved up
 * @allowance_permille: of one processor, outside leases, is no offence
 * @burst_ns: the most of the allowance that can be saved up
 * @every_ns: how often to look
 * @penalty_ns: how long children are frozen outside leases after an offence; twice
 *	as long after each further one, up to 64 times
 */
struct vgpu_watch_settings {
	u32 processors;
	u32 free_permille;
	u32 allowance_permille;
	u64 burst_ns;
	u64 every_ns;
	u64 penalty_ns;
};

/**
 * struct vgpu_watch - of one party
 * @until_ns: the penalty ends; 0 for none
 */
struct vgpu_watch {
	u64 until_ns;
	/* private: */
	u64 at_ns;
	u64 processor_ns;
	u64 leased_ns;
	s64 credit_ns;
	u64 free_ns;
	u32 offences;
	bool seen;
};

/* What was seen belongs to processes or to a slice that are gone. */
void vgpu_watch_reset(struct vgpu_watch *watch);

/**
 * vgpu_watch_look() - the children have used so much by now
 * @watch: of their party
 * @settings: what is allowed
 * @processor_ns: used by them, ever
 * @leased_ns: of the accelerator, paid for by their party, ever
 * @now_ns: the present
 *
 * Return: the engine time to pay for use outside leases; 0 for none.  An offence moves
 * @until_ns.
 */
u64 vgpu_watch_look(struct vgpu_watch *watch, const struct vgpu_watch_settings *settings,
		    u64 processor_ns, u64 leased_ns, u64 now_ns);

#endif /* VGPU_SCHED_WATCH_H */
