/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * How much processor time a tenant's children use outside their leases.
 *
 * Where the accelerator is the host's processors (PoCL), a child can compute
 * without a lease.  Its supervisor says now and then how much processor time all
 * children have used.  The tenant pays for what exceeds the processors' time during
 * their leases.  A small part is free, because a child needs it to take requests.
 *
 * The excess is also taken from an allowance.  Once that is used up the tenant has
 * committed an offence.  So over any time the children use at most what their leases
 * and the allowance are worth, plus what they use between two looks.
 *
 * Nobody looks while nobody else has work.  A look after a long pause therefore
 * charges for two ordinary intervals only, at the pause's mean rate.
 *
 * Pure; not thread safe.
 */
#ifndef VGPU_BROKER_WATCH_H
#define VGPU_BROKER_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct watch_settings - what is allowed
 * @processors: how many the accelerator is; 0: processor time says nothing
 * @free_permille: of one processor, outside leases, costs nothing; what a second
 *	earns of it can be saved up
 * @allowance_permille: of one processor, outside leases, is no offence
 * @burst_ns: the most of the allowance that can be saved up
 * @every_ns: how often to look
 * @penalty_ns: how long children are frozen outside leases after an offence; twice
 *	as long after each further one, up to 64 times
 */
struct watch_settings {
	uint32_t processors;
	uint32_t free_permille;
	uint32_t allowance_permille;
	uint64_t burst_ns;
	uint64_t every_ns;
	uint64_t penalty_ns;
};

/**
 * struct watch - of one tenant
 * @until_ns: the penalty ends; 0 for none
 */
struct watch {
	uint64_t until_ns;
	/* private: */
	uint64_t at_ns;
	uint64_t processor_ns;
	uint64_t leased_ns;
	int64_t credit_ns;
	uint64_t free_ns;
	uint32_t offences;
	bool seen;
};

/* What was seen belongs to processes that are gone. */
void watch_reset(struct watch *watch);

/**
 * watch_look() - the children have used so much by now
 * @processor_ns: ever
 * @leased_ns: of the accelerator, paid for by their tenant, ever
 *
 * Return: the engine time to pay for use outside leases; 0 for none.  An offence moves
 * @until_ns.
 */
uint64_t watch_look(struct watch *watch, const struct watch_settings *settings,
		    uint64_t processor_ns, uint64_t leased_ns, uint64_t now_ns);

#endif /* VGPU_BROKER_WATCH_H */
