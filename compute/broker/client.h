/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client: a program that has connected to its tenant's socket, and the child that
 * works for it.  It begins with client_accept(), and frees itself when the program
 * was refused or nothing is left of its child.
 */
#ifndef VGPU_BROKER_CLIENT_H
#define VGPU_BROKER_CLIENT_H

#include "broker/broker.h"

/* @fd: the connection, owned from now on. */
void client_accept(struct tenant *tenant, int fd);

/* The supervisor's answer to START. */
void client_started(struct client *client, bool done, const char *reason);

/* Nothing is left of the child.  @status: as waitpid() gives it.  The client is freed. */
void client_ended(struct client *client, int status, const char *reason);

/* End it: its child is killed, if it has one; @refusal and @reason are told to the program. */
void client_end(struct client *client, enum vgpu_refusal refusal, const char *reason);

/* Of the broker's timer @refusals. */
void client_refusals_due(struct loop_timer *timer, uint64_t now_ns);

/* Read what its child has sent by now, a few datagrams at most. */
void client_drain(struct client *client);

#endif /* VGPU_BROKER_CLIENT_H */
