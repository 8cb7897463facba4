/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client: a program that has connected to its tenant's socket, and the program's child.
 * client_accept() creates a client.  The client frees itself when the program was refused or when
 * its child is completely gone.
 */
#ifndef VGPU_BROKER_CLIENT_H
#define VGPU_BROKER_CLIENT_H

#include "broker/broker.h"

/* Accept a connection.  Takes ownership of @fd. */
void client_accept(struct tenant *tenant, int fd);

/* Handle the supervisor's answer to START. */
void client_started(struct client *client, bool done, const char *reason);

/* The child is completely gone.  @status: from waitpid().  Frees the client. */
void client_ended(struct client *client, int status, const char *reason);

/* End a client: send @refusal and @reason to the program, and kill its child, if any. */
void client_end(struct client *client, enum vgpu_refusal refusal, const char *reason);

/*
 * Refuse a client, and log the refusal.  If there are many refusals, some log lines are left out.
 */
void client_refuse(struct client *client, enum vgpu_refusal refusal, const char *reason);

/* May the tenant have one more process?  If not, refuse the client and return false. */
bool client_admit(struct client *client);

/* Callback of the broker's timer @refusals. */
void client_refusals_due(struct loop_timer *timer, uint64_t now_ns);

/* Read the child's pending requests, a few at most. */
void client_drain(struct client *client);

/* native_client.c: takes ownership of @listener. */
void client_greet_native(struct client *client, int listener);
/* Record whether the program has channels on the GPU. */
void client_works(struct client *client, bool works);

#endif /* VGPU_BROKER_CLIENT_H */
