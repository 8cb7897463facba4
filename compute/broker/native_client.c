// SPDX-License-Identifier: Apache-2.0
/*
 * A client that is a native program: a launcher announces the program, and the supervisor accepts
 * it.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker/client.h"
#include "broker/firmware.h"
#include "broker/memory.h"
#include "broker/supervisor.h"
#include "broker/tenant.h"

#define START_WITHIN_NS	5000000000ull

static struct loop *loop_of(const struct client *client)
{
	return &client->tenant->broker->loop;
}

/*
 * With leases, a new program must wait while its tenant has no lease, even if the tenant's gate is
 * open.  A closed gate is not checked here, because the supervisor knows about it.
 */
static bool waits_for_lease(const struct tenant *tenant)
{
	return !firmware_shares(tenant->broker) && vgpu_arbiter_holder(&tenant->broker->arbiter) != &tenant->party;
}

static bool send_start(struct client *client)
{
	struct tenant *tenant = client->tenant;
	struct vgpu_supervisor_message message = {
		.op = VGPU_SUPERVISOR_START_NATIVE,
		.child = client->child,
		.memory_bytes = tenant->settings.memory_bytes,
		.timeslice_us = tenant->native.timeslice_us,
		.status = waits_for_lease(tenant),
	};

	if (!supervisor_send(&tenant->supervisor, &message, &client->listener.fd, 1))
		return false;
	client->start = message.sequence;
	return true;
}

/*
 * With leases, the program gets a stream like a child does.  The broker, not the program, sets
 * whether the stream is busy.
 */
static bool make_stream(struct client *client)
{
	int fd;

	if (firmware_shares(client->tenant->broker))
		return true;
	fd = memory_stream(&client->page);
	if (fd < 0)
		return false;
	close(fd);
	client->has_stream = true;
	vgpu_arbiter_stream_add(&client->tenant->broker->arbiter, &client->tenant->party, &client->stream, false,
				loop_now_ns());
	return true;
}

/* The launcher is blocked in its call, so the supervisor can now find out which process it is. */
static void listener_ready(struct loop_watch *watch, uint32_t events)
{
	struct client *client = (struct client *)((char *)watch - offsetof(struct client, listener));
	struct tenant *tenant = client->tenant;

	if (!(events & EPOLLIN)) {
		client_refuse(client, VGPU_REFUSED_MESSAGE, "the launcher has ended");
		return;
	}
	client->child = ++tenant->broker->children;
	if (!make_stream(client) || !send_start(client)) {
		client->child = 0;
		vgpu_arbiter_stream_remove(&tenant->broker->arbiter, &client->stream, loop_now_ns());
		client_refuse(client, VGPU_REFUSED_EXECUTOR, "the tenant's supervisor did not accept the program");
		return;
	}
	loop_remove(loop_of(client), watch);
	client->state = CLIENT_STARTING;
	client->since_ns = loop_now_ns();
	tenant->processes++;
	tenant->native.programs++;
	loop_arm(loop_of(client), &client->patience, loop_now_ns() + START_WITHIN_NS);
}

/*
 * Check only the name of an unknown descriptor: any query to its file could return false
 * information or block forever.  A regular file cannot have the name of a listener, because the
 * name of a regular file begins with "/".
 */
static bool is_listener(int fd)
{
	char path[32], name[64];
	ssize_t length;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	length = readlink(path, name, sizeof(name) - 1);
	if (length < 0)
		return false;
	name[length] = '\0';
	return !strcmp(name, "anon_inode:seccomp notify");
}

void client_greet_native(struct client *client, int listener)
{
	client->listener = (struct loop_watch){ .fd = listener, .ready = listener_ready };
	if (!client->tenant->settings.native) {
		client_refuse(client, VGPU_REFUSED_NATIVE,
			      "this tenant's programs may not be native; `native = true` of the tenant permits it");
		return;
	}
	if (!client_admit(client))
		return;
	client->native = true;
	if (!is_listener(listener) || loop_add(loop_of(client), &client->listener, EPOLLIN))
		client_refuse(client, VGPU_REFUSED_MESSAGE, "its descriptor is no listener of seccomp");
}

void client_works(struct client *client, bool works)
{
	struct vgpu_arbiter *arbiter = &client->tenant->broker->arbiter;
	struct vgpu_supervisor_message thaw = { .op = VGPU_SUPERVISOR_THAW };
	uint64_t now_ns = loop_now_ns();

	if (!client->native || client->works == works)
		return;
	client->works = works;
	if (!client->has_stream) {
		firmware_works(client->tenant);
		return;
	}
	/* The program never reports that it is dry, so its leases end only when the gate closes. */
	vgpu_arbiter_stream_remove(arbiter, &client->stream, now_ns);
	atomic_store(&client->page->dry_since_ns, now_ns);
	atomic_store(&client->page->state, works ? VGPU_STREAM_BUSY : VGPU_STREAM_DRY);
	vgpu_arbiter_stream_add(arbiter, &client->tenant->party, &client->stream, works, now_ns);
	/*
	 * The program started with its gate closed, whatever the state of the tenant's gate.  If
	 * the tenant already has a lease, no later lease would open the program's gate, so open it
	 * here.  If the arbiter has closed or is closing the tenant's gate, the program's gate
	 * opens with the tenant's next lease.
	 */
	if (works && vgpu_arbiter_holder(arbiter) == &client->tenant->party && !client->tenant->party.gate_closed)
		supervisor_send(&client->tenant->supervisor, &thaw, NULL, 0);
}
