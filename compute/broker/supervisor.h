/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant's supervisor.  It is started as described in executor/start.h.  If it dies, it is
 * restarted with growing pauses.  If it sends an invalid message or does not answer, it is killed.
 */
#ifndef VGPU_BROKER_SUPERVISOR_H
#define VGPU_BROKER_SUPERVISOR_H

#include "broker/broker.h"

/*
 * Start the supervisor.  @supervisor: zeroed.  If the start fails, it is retried.
 */
void supervisor_init(struct supervisor *supervisor, struct tenant *tenant);

/* Close its socket, so that it exits, and do not restart it. */
void supervisor_end(struct supervisor *supervisor);

/*
 * Kill the supervisor.  When it has ended, tenant_supervisor_lost() is called, and the supervisor
 * is restarted.
 */
void supervisor_kill(struct supervisor *supervisor);

/**
 * supervisor_send() - send a message
 * @message: the message; its version is filled in, and its sequence if that is 0
 * @fds: @count descriptors to send along; the caller still owns them
 *
 * Return: whether the message was sent; if not, the supervisor is down or being killed, or the
 * broker has run out of descriptors.
 */
bool supervisor_send(struct supervisor *supervisor, struct vgpu_supervisor_message *message,
		     const int *fds, unsigned int count);

static inline bool supervisor_is_up(const struct supervisor *supervisor)
{
	return supervisor->state == SUPERVISOR_UP;
}

#endif /* VGPU_BROKER_SUPERVISOR_H */
