/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant's supervisor: started as executor/start.h says, started again with a growing
 * pause when it dies, killed when it makes no sense or does not answer.
 */
#ifndef VGPU_BROKER_SUPERVISOR_H
#define VGPU_BROKER_SUPERVISOR_H

#include "broker/broker.h"

/* @supervisor: zeroed.  If it cannot be started now it is tried again. */
void supervisor_init(struct supervisor *supervisor, struct tenant *tenant);

/* Its socket is closed, upon which it exits.  It is not started again. */
void supervisor_end(struct supervisor *supervisor);

/* Its end goes to tenant_supervisor_lost(), and it is started again. */
void supervisor_kill(struct supervisor *supervisor);

/**
 * supervisor_send() - send a message
 * @message: version and sequence are filled in, unless a sequence is given
 * @fds: @count descriptors, which stay the caller's
 *
 * Return: whether it was sent; if not, the supervisor is down, or is killed.
 */
bool supervisor_send(struct supervisor *supervisor, struct vgpu_supervisor_message *message,
		     const int *fds, unsigned int count);

static inline bool supervisor_is_up(const struct supervisor *supervisor)
{
	return supervisor->state == SUPERVISOR_UP;
}

#endif /* VGPU_BROKER_SUPERVISOR_H */
