/* SPDX-License-Identifier: Apache-2.0 */
/* One call of a child, made on copies. */
#ifndef VGPU_EXECUTOR_RELAY_CALL_H
#define VGPU_EXECUTOR_RELAY_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "executor/gate/relay.h"

/**
 * struct relay_state - of a relay
 * @known: the driver has said that it is of a version that the gate knows
 * @version: what it has said
 */
struct relay_state {
	const struct vgpu_relay *relay;
	bool known;
	char version[64];
};

/**
 * struct relay_call - what a notification says, and what became of it
 * @refused: out: why for the log, or NULL; @detail is a number that goes with it
 */
struct relay_call {
	int file;
	uint32_t escape;
	uint32_t bytes;
	uint64_t address;
	const char *refused;
	uint32_t detail;
};

/* Return: 0, or a positive errno value for the child. */
int relay_perform(struct relay_state *state, struct relay_call *call);
/* The same of a request for which relay_is_uvm(); it is in @escape. */
int relay_perform_uvm(struct relay_state *state, struct relay_call *call);
bool relay_is_uvm(uint32_t request);

/* Copies from and to the child's memory; false if it has none there. */
bool relay_take(const struct relay_state *state, void *to, uint64_t from, uint64_t bytes);
bool relay_give(const struct relay_state *state, uint64_t to, const void *from, uint64_t bytes);
void relay_refuse(struct relay_call *call, const char *why, uint32_t detail);

#endif /* VGPU_EXECUTOR_RELAY_CALL_H */
