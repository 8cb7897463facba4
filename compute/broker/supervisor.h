/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant's supervisor.  It is started as described in executor/start.h.  If it dies,
 * it is restarted with growing pauses.  If it sends nonsense or does not answer, it is
 * killed.
 */
#ifndef VGPU_BROKER_SUPERVISOR_H
#define VGPU_BROKER_SUPERVISOR_H

#include "broker/broker.h"

/*
 * Start the supervisor.  @supervisor: zeroed.  If the start fails, it is tried again.
 */
void supervisor_init(struct supervisor *supervisor, struct tenant *tenant);

/* Close its socket, so that it exits, and do not restart it. */
void supervisor_end(struct supervisor *supervisor);

/*
 * Kill the supervisor. tenant_supervisor_lost() is called when it has ended, and it is
 * restarted.
 */
void supervisor_kill(struct supervisor *supervisor);

/**
 * supervisor_send() - send a message
 * @message: version is filled in, and sequence too if it is 0
 * @fds: @count descriptors; the caller keeps them
 *
 * Return: whether it was sent; if not, the supervisor is down, is being killed, or
 * descriptors have run out.
 */
bool supervisor_send(struct supervisor *supervisor, struct vgpu_supervisor_message *message,
		     const int *fds, unsigned int count);

static inline bool supervisor_is_up(const struct supervisor *supervisor)
{
	return supervisor->state == SUPERVISOR_UP;
}

#endif /* VGPU_BROKER_SUPERVISOR_H */
