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

/* Refuse it, with a line in the log, a few of which are left out if there are many. */
void client_refuse(struct client *client, enum vgpu_refusal refusal, const char *reason);

/* May the tenant have one more?  If not, it is refused and this returns false. */
bool client_admit(struct client *client);

/* Of the broker's timer @refusals. */
void client_refusals_due(struct loop_timer *timer, uint64_t now_ns);

/* Read what its child has sent by now, a few datagrams at most. */
void client_drain(struct client *client);

/* native_client.c: @listener is owned from now on. */
void client_greet_native(struct client *client, int listener);
/* It has channels on the GPU now, or has none any more. */
void client_works(struct client *client, bool works);

#endif /* VGPU_BROKER_CLIENT_H */
