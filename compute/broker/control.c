// SPDX-License-Identifier: Apache-2.0
#include "broker/control.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker/apply.h"
#include "broker/json.h"
#include "broker/show.h"

#define LINE_MAX_BYTES	(4u << 20)
#define CONNECTIONS_MAX	16u

/**
 * struct connection - a connection of a process that controls the broker
 * @line: the request as read so far, @used of @room bytes
 * @answer: the answer; @left bytes from @at on are still to be written
 */
struct connection {
	struct broker *broker;
	struct loop_watch watch;
	char *line;
	size_t used;
	size_t room;
	char *answer;
	char *at;
	size_t left;
};

static struct {
	struct broker *broker;
	struct loop_watch watch;
	unsigned int connections;
} control;

static void hang_up(struct connection *connection)
{
	loop_remove(&connection->broker->loop, &connection->watch);
	free(connection->line);
	free(connection->answer);
	free(connection);
	control.connections--;
}

static void say_fault(FILE *file, const struct settings_fault *fault)
{
	fputs("{\"ok\":false,\"code\":", file);
	json_write(file, fault->code);
	fputs(",\"field\":", file);
	json_write(file, fault->field);
	fputs(",\"detail\":", file);
	json_write(file, fault->detail);
	fputs("}\n", file);
}

static bool set(struct broker *broker, const struct json *request, struct settings_fault *fault)
{
	const struct json *generation = json_get(request, "generation");
	struct settings settings;
	bool done;

	if (!generation || generation->type != JSON_NUMBER) {
		settings_refuse(fault, "field.invalid", "generation", "a whole number is expected");
		return false;
	}
	if (broker->stopping) {
		settings_refuse(fault, "broker.stopping", "", "the broker is being stopped");
		return false;
	}
	if (generation->number && generation->number != broker->generation) {
		settings_refuse(fault, "generation.stale", "generation",
				"the configuration has been changed since it was read: it is generation %llu",
				(unsigned long long)broker->generation);
		return false;
	}
	done = settings_read(&settings, json_get(request, "settings"), fault) &&
	       apply(broker, &settings, fault);
	settings_free(&settings);
	return done;
}

static void answer(struct broker *broker, char *line, size_t bytes, FILE *file)
{
	struct settings_fault fault = { 0 };
	const struct json *op;
	struct json *request;
	const char *error;

	request = json_parse(line, bytes, &error);
	op = json_get(request, "op");
	if (!request) {
		settings_refuse(&fault, "request.invalid", "", "not a document: %s", error);
	} else if (!op || op->type != JSON_STRING) {
		settings_refuse(&fault, "request.invalid", "op", "show, set or stop is expected");
	} else if (!strcmp(op->text, "show")) {
		show(broker, file);
	} else if (!strcmp(op->text, "set")) {
		if (set(broker, request, &fault))
			fprintf(file, "{\"ok\":true,\"generation\":%llu}\n",
				(unsigned long long)broker->generation);
	} else if (!strcmp(op->text, "stop")) {
		broker_stop(broker);
		fputs("{\"ok\":true}\n", file);
	} else {
		settings_refuse(&fault, "request.invalid", "op", "show, set or stop is expected");
	}
	if (fault.code)
		say_fault(file, &fault);
	json_free(request);
}

/* Return whether everything is written. */
static bool write_answer(struct connection *connection)
{
	ssize_t sent = 0;

	while (connection->left) {
		sent = send(connection->watch.fd, connection->at, connection->left,
			    MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent <= 0)
			break;
		connection->at += sent;
		connection->left -= (size_t)sent;
	}
	return !connection->left;
}

/* Answer the first complete line, if there is one.  Return whether to keep the connection. */
static bool answer_line(struct connection *connection)
{
	char *end = memchr(connection->line, '\n', connection->used);
	size_t bytes = 0;
	FILE *file;

	if (!end)
		return connection->used < LINE_MAX_BYTES;
	file = open_memstream(&connection->answer, &bytes);
	if (!file)
		return false;
	answer(connection->broker, connection->line, (size_t)(end - connection->line), file);
	if (fclose(file))
		return false;
	end++;
	connection->used -= (size_t)(end - connection->line);
	memmove(connection->line, end, connection->used);
	connection->at = connection->answer;
	connection->left = bytes;
	return true;
}

static bool read_more(struct connection *connection)
{
	ssize_t got;
	char *line;

	if (connection->used == connection->room) {
		if (connection->room >= LINE_MAX_BYTES)
			return false;
		connection->room = connection->room ? 2 * connection->room : 4096;
		line = realloc(connection->line, connection->room);
		if (!line)
			return false;
		connection->line = line;
	}
	got = recv(connection->watch.fd, connection->line + connection->used,
		   connection->room - connection->used, MSG_DONTWAIT);
	if (got > 0)
		connection->used += (size_t)got;
	return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static void connection_ready(struct loop_watch *watch, uint32_t events)
{
	struct connection *connection =
		(struct connection *)((char *)watch - offsetof(struct connection, watch));

	if (events & EPOLLERR || (!connection->answer && !read_more(connection))) {
		hang_up(connection);
		return;
	}
	for (;;) {
		if (!connection->answer && !answer_line(connection)) {
			hang_up(connection);
			return;
		}
		if (!connection->answer)
			break;
		if (!write_answer(connection)) {
			if (events & EPOLLHUP) {
				hang_up(connection);
				return;
			}
			loop_change(&connection->broker->loop, watch, EPOLLOUT);
			return;
		}
		free(connection->answer);
		connection->answer = NULL;
	}
	loop_change(&connection->broker->loop, watch, EPOLLIN);
}

static void listener_ready(struct loop_watch *watch, uint32_t events)
{
	int fd = accept4(watch->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct connection *connection = NULL;

	(void)events;
	if (fd < 0)
		return;
	if (control.connections < CONNECTIONS_MAX)
		connection = calloc(1, sizeof(*connection));
	if (!connection) {
		close(fd);
		return;
	}
	control.connections++;
	connection->broker = control.broker;
	connection->watch = (struct loop_watch){ .fd = fd, .ready = connection_ready };
	if (loop_add(&control.broker->loop, &connection->watch, EPOLLIN))
		hang_up(connection);
}

int control_open(struct broker *broker)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int length, fd, failed;
	mode_t mask;

	length = snprintf(address.sun_path, sizeof(address.sun_path), "%s/control", broker->directory);
	if (length < 0 || (size_t)length >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	unlink(address.sun_path);
	mask = umask(0177);
	failed = bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 8) ? errno : 0;
	umask(mask);
	if (failed) {
		close(fd);
		return -failed;
	}
	control.broker = broker;
	control.watch = (struct loop_watch){ .fd = fd, .ready = listener_ready };
	return loop_add(&broker->loop, &control.watch, EPOLLIN);
}
