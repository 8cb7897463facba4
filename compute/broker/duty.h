/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caps of tenants whose native programs run side by side, in timeslices that the GPU's own
 * scheduler gives by weight.
 *
 * Each period earns a capped tenant its part of the period.  While its gate is open and it
 * works, it pays for its part by weight of those that are open and work, which is all of the
 * time if it is alone.  With nothing left its gate closes, until a period has earned it
 * something again.  What a gate that closes late has let it use is a debt, and so is paid.
 *
 * Pure: the caller passes the time (CLOCK_MONOTONIC, ns), and opens and closes gates.
 */
#ifndef VGPU_BROKER_DUTY_H
#define VGPU_BROKER_DUTY_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct duty - one tenant's
 * @weight: at least 1
 * @cap_ns: in each @cap_period_ns; 0 for no cap
 * @burst_ns: the most that it can save up; 0 for what one period earns
 * @works: it has work for the GPU
 * @open: its gate is open, or not yet closed
 * @credit_ns: what it may use; below 0 a debt
 * @obtained_ns: what it was charged for, ever
 * @open_ns: how long it was open and worked, ever
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
	uint64_t rest;	/* of a division, below the sum of weights */
};

/**
 * struct duties - of all tenants of a GPU; zeroed, then duties_configure()
 */
struct duties {
	struct duty *first;
	uint64_t period_ns;
	uint64_t now_ns;
	uint64_t refill_ns;
};

/* A period that has begun goes on as it is. */
void duties_configure(struct duties *duties, uint64_t period_ns, uint64_t now_ns);
/* With all that its cap may save up.  The caller sets the terms, before that or after duties_settle(). */
void duties_add(struct duties *duties, struct duty *duty);
void duties_remove(struct duties *duties, struct duty *duty);

/* Charges and earns up to now.  To be called before anything of any tenant changes. */
void duties_settle(struct duties *duties, uint64_t now_ns);
/* After duties_settle(): is its gate to be open? */
bool duty_may_run(const struct duties *duties, const struct duty *duty);
/* When duty_may_run() can change by itself; UINT64_MAX for never. */
uint64_t duties_next_ns(const struct duties *duties);

/**
 * duty_timeslice_us() - of the GPU's scheduler, for all channel groups of a tenant together
 *
 * The least weight gets a timeslice that is worth its switch, the others get more in
 * proportion, and a round of all of them is kept short.
 */
uint64_t duty_timeslice_us(const struct duties *duties, const struct duty *duty);

#endif /* VGPU_BROKER_DUTY_H */
