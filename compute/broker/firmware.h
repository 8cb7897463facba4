/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Native programs of all tenants side by side: the GPU's firmware gives timeslices by
 * weight, and gates keep the caps (duty.h).  The other way of turns is the arbiter's, in
 * which a native program is one more child (`native.turns` of the configuration).
 */
#ifndef VGPU_BROKER_FIRMWARE_H
#define VGPU_BROKER_FIRMWARE_H

#include "broker/broker.h"

/* Whether native programs take their turns in this way. */
static inline bool firmware_shares(const struct broker *broker)
{
	return broker->settings.native_turns == NATIVE_TURNS_FIRMWARE;
}

void firmware_configure(struct broker *broker);
void firmware_join(struct tenant *tenant);
void firmware_leave(struct tenant *tenant);
/* The tenant's terms have changed. */
void firmware_terms(struct tenant *tenant);

/* One of the tenant's native programs has begun or ceased to have channels on the GPU. */
void firmware_works(struct tenant *tenant);
/* The supervisor has ended, and with it all of the tenant's native programs. */
void firmware_supervisor_lost(struct tenant *tenant);

/* The supervisor's answer to FREEZE or THAW, with the sequence of such a request. */
void firmware_gate_answered(struct tenant *tenant, uint64_t sequence, bool done);
static inline bool firmware_asked(uint64_t sequence)
{
	return sequence >> 62 == 1;
}

/* Of the broker's timer @firmware_timer. */
void firmware_due(struct loop_timer *timer, uint64_t now_ns);
/* Brings the counters up to date. */
void firmware_settle(struct broker *broker, uint64_t now_ns);

#endif /* VGPU_BROKER_FIRMWARE_H */
