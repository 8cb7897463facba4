/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How much processor time a party's children use outside their leases.
 *
 * Where the accelerator consists of the host's processors (PoCL), a child can compute
 * without a lease.  Its supervisor reports from time to time how much processor time
 * all children have used.  The party pays for the excess: what its children have used
 * beyond the time of all processors during its leases.  A small part is free, because
 * a child needs it to take requests.
 *
 * The excess is also taken from an allowance.  A party whose allowance is used up has
 * committed an offence.  So over any time the children use at most what their leases
 * and the allowance are worth, plus what they use between two looks.
 *
 * Nobody looks while no other party has work.  A look after a long pause therefore
 * charges for two ordinary intervals only, at the pause's mean rate.
 *
 * Pure; not thread safe.
 */
#ifndef VGPU_SCHED_WATCH_H
#define VGPU_SCHED_WATCH_H

#include "port.h"

/**
 * struct vgpu_watch_settings - how much is allowed
 * @processors: number of processors that form the accelerator; 0 turns the watch off
 * @free_permille: part of one processor that may be used outside leases at no cost; up
 *	to one second's worth of it can be saved up
 * @allowance_permille: part of one processor that may be used outside leases without
 *	an offence
 * @burst_ns: the most of the allowance that can be saved up
 * @every_ns: how often to look
 * @penalty_ns: how long children are frozen outside leases after an offence; doubles
 *	with each further offence, up to 64 times
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
 * struct vgpu_watch - what is known about one party
 * @until_ns: when the penalty ends; 0 for none
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

/* Forget the processor time seen so far: its processes or its slice are gone. */
void vgpu_watch_reset(struct vgpu_watch *watch);

/**
 * vgpu_watch_look() - record how much processor time the children have used by now
 * @watch: watch of the children's party
 * @settings: what is allowed
 * @processor_ns: processor time that the children have ever used
 * @leased_ns: accelerator time that their party has ever paid for
 * @now_ns: the present
 *
 * Return: the engine time to pay for use outside leases; 0 for none.  An offence moves
 * @until_ns.
 */
u64 vgpu_watch_look(struct vgpu_watch *watch, const struct vgpu_watch_settings *settings,
		    u64 processor_ns, u64 leased_ns, u64 now_ns);

#endif /* VGPU_SCHED_WATCH_H */
