/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caps of tenants whose native programs run side by side.  The GPU's own scheduler gives their timeslices
 * by weight.
 *
 * Each period a capped tenant earns its cap's share of the period as credit.  While it works and
 * its gate is open, it pays for its share of the GPU.  That share is its weight divided by the sum
 * of the weights of all tenants that work with an open gate.  So a tenant that works alone pays for
 * all of the time.  When the credit is used up, the gate closes until a later period has earned
 * enough again.  If a gate closes late, the extra time becomes a debt that later periods pay off.
 *
 * Pure: the caller passes the time (CLOCK_MONOTONIC, ns), and opens and closes gates.
 */
#ifndef VGPU_BROKER_DUTY_H
#define VGPU_BROKER_DUTY_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct duty - a tenant's cap and its use
 * @weight: at least 1
 * @cap_ns: time in each @cap_period_ns; 0 for no cap
 * @burst_ns: the most credit to save up; 0 for the credit of one period
 * @works: the tenant has work for the GPU
 * @open: the gate is open, or its closing is not complete yet
 * @credit_ns: time that the tenant may still use; negative if it is in debt
 * @obtained_ns: total time that the tenant was charged for
 * @open_ns: total time that the tenant worked with an open gate
 */
struct duty {
	uint32_t weight;
	uint64_t cap_ns;
	uint64_t cap_period_ns;
	uint64_t burst_ns;
	bool works;
	bool open;
	int64_t credit_ns;
	uint64_t obtained_ns;
	uint64_t open_ns;
	/* private: */
	struct duty *next;
	uint64_t rest;	/* remainder of the last charge, less than the sum of weights */
};

/**
 * struct duties - the duties of all tenants of a GPU; zero it, then call duties_configure()
 */
struct duties {
	struct duty *first;
	uint64_t period_ns;
	uint64_t now_ns;
	uint64_t refill_ns;
};

/* Sets the length of all later periods.  The current period keeps its length. */
void duties_configure(struct duties *duties, uint64_t period_ns, uint64_t now_ns);
/*
 * Adds a tenant with all the credit that its cap may save up.  The caller sets the terms before
 * this call.  To change them later, it first calls duties_settle().
 */
void duties_add(struct duties *duties, struct duty *duty);
void duties_remove(struct duties *duties, struct duty *duty);

/* Charges and refills all tenants up to now.  Call this before any change of a tenant. */
void duties_settle(struct duties *duties, uint64_t now_ns);
/* Call it after duties_settle().  Should the tenant's gate be open? */
bool duty_may_run(const struct duties *duties, const struct duty *duty);
/* The next time when a result of duty_may_run() can change; UINT64_MAX for never. */
uint64_t duties_next_ns(const struct duties *duties);

/**
 * duty_timeslice_us() - a tenant's timeslice for the GPU's scheduler, over all its channel groups
 *
 * The least weight gets a timeslice that is long enough for the cost of a switch.  Greater weights
 * get proportionally more.  If the sum of all timeslices would be too long, all of them are
 * shortened.
 */
uint64_t duty_timeslice_us(const struct duties *duties, const struct duty *duty);

#endif /* VGPU_BROKER_DUTY_H */
