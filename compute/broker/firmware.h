/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native programs of all tenants side by side: the GPU's firmware gives timeslices by
 * weight, and gates enforce the caps (duty.h).  The alternative (`native.turns` of the
 * configuration) is the arbiter's leases, where a native program is treated like a child.
 */
#ifndef VGPU_BROKER_FIRMWARE_H
#define VGPU_BROKER_FIRMWARE_H

#include "broker/broker.h"

/* Return whether native programs share the GPU in this way. */
static inline bool firmware_shares(const struct broker *broker)
{
	return broker->settings.native_turns == NATIVE_TURNS_FIRMWARE;
}

void firmware_configure(struct broker *broker);
void firmware_join(struct tenant *tenant);
void firmware_leave(struct tenant *tenant);
/* Call after the tenant's terms have changed. */
void firmware_terms(struct tenant *tenant);

/*
 * Call after one of the tenant's native programs has got channels on the GPU, or has lost its last
 * channel.
 */
void firmware_works(struct tenant *tenant);
/*
 * Call after the supervisor has ended, and all of the tenant's native programs with it.
 */
void firmware_supervisor_lost(struct tenant *tenant);

/* Handle the supervisor's answer to a FREEZE or THAW with this sequence. */
void firmware_gate_answered(struct tenant *tenant, uint64_t sequence, bool done);
static inline bool firmware_asked(uint64_t sequence)
{
	return sequence >> 62 == 1;
}

/* Callback of the broker's timer @firmware_timer. */
void firmware_due(struct loop_timer *timer, uint64_t now_ns);
/* Update the counters to now. */
void firmware_settle(struct broker *broker, uint64_t now_ns);

#endif /* VGPU_BROKER_FIRMWARE_H */
