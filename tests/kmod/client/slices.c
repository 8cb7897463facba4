// SPDX-License-Identifier: GPL-2.0
/* Several slices driven from one process with one thread each, which start together. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "clock.h"
#include "exit.h"
#include "load_command.h"
#include "saturate.h"
#include "transport_vfio.h"

struct slice {
	char *spec; /* owns the text that uuid and name point to */
	const char *uuid;
	const char *name;
	struct saturate_options options;
	struct saturate run;
	struct transport *transport;
	pthread_t thread;
	pthread_barrier_t *begin;
	bool prepared;
};

/* UUID,option=value,... where name=TEXT names the slice in reports. */
static bool parse(struct slice *slice, const char *spec,
		  const struct saturate_options *defaults)
{
	char *rest, *part;

	slice->options = *defaults;
	slice->spec = strdup(spec);
	if (!slice->spec)
		return false;
	slice->uuid = strtok_r(slice->spec, ",", &rest);
	slice->name = slice->uuid;
	while (slice->uuid && (part = strtok_r(NULL, ",", &rest))) {
		char *value = strchr(part, '=');
		const char *why;

		if (value)
			*value++ = '\0';
		if (!strcmp(part, "name") && value) {
			slice->name = value;
			continue;
		}
		why = saturate_option(&slice->options, part, value);
		if (why) {
			fprintf(stderr, "vgpu-client: --slice %s: %s: %s\n",
				slice->uuid, part, why);
			return false;
		}
	}
	saturate_complete(&slice->options);
	return slice->uuid != NULL;
}

static bool open_slice(struct slice *slice, const struct client_options *options,
		       bool json)
{
	char message[192];

	slice->transport = transport_vfio_open(slice->uuid, options->entries,
					       message, sizeof(message));
	if (!slice->transport) {
		fprintf(stderr, "vgpu-client: %s\n", message);
		return false;
	}
	slice->run = (struct saturate){
		.options = &slice->options,
		.transport = slice->transport,
		.name = slice->name,
		.json = json,
	};
	slice->prepared = true;
	if (saturate_prepare(&slice->run) == 0)
		return true;
	fprintf(stderr, "vgpu-client: %s: %s\n", slice->name,
		slice->transport->message);
	return false;
}

static void *drive(void *data)
{
	struct slice *slice = data;

	pthread_barrier_wait(slice->begin);
	saturate_run(&slice->run);
	return NULL;
}

static void close_slice(struct slice *slice)
{
	if (slice->prepared)
		saturate_finish(&slice->run);
	if (slice->transport)
		slice->transport->ops->close(slice->transport);
	free(slice->spec);
}

static void end(int number)
{
	(void)number;
	saturate_end();
}

static int run_slices(struct slice *slices, unsigned int count, bool json,
		      bool ready)
{
	struct sigaction action = { .sa_handler = end };
	pthread_barrier_t begin;
	sigset_t signals;
	int status = EXIT_OK;
	unsigned int started;

	/* SIGTERM ends the measured phase without interrupting the wait of any thread */
	sigaction(SIGTERM, &action, NULL);
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	pthread_barrier_init(&begin, NULL, count + 1);
	for (started = 0; started < count; started++) {
		slices[started].begin = &begin;
		if (pthread_create(&slices[started].thread, NULL, drive,
				   &slices[started])) {
			/* threads that wait at the barrier end with the process */
			fprintf(stderr, "vgpu-client: no more threads\n");
			exit(EXIT_DEVICE);
		}
	}
	pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
	if (ready)
		load_command_await_go(json);
	pthread_barrier_wait(&begin);
	for (unsigned int i = 0; i < count; i++)
		pthread_join(slices[i].thread, NULL);
	for (unsigned int i = 0; i < count; i++) {
		int ended = saturate_exit(&slices[i].run);

		saturate_report(&slices[i].run);
		if (status == EXIT_OK)
			status = ended;
	}
	pthread_barrier_destroy(&begin);
	return status;
}

int client_slices(const char *const specs[], unsigned int count,
		  const struct saturate_options *defaults,
		  const struct client_options *options, bool json, bool ready)
{
	struct slice *slices = calloc(count, sizeof(*slices));
	int status = EXIT_OK;

	if (!slices)
		return EXIT_DEVICE;
	for (unsigned int i = 0; i < count && status == EXIT_OK; i++)
		if (!parse(&slices[i], specs[i], defaults))
			status = EXIT_USAGE;
	for (unsigned int i = 0; i < count && status == EXIT_OK; i++)
		if (!open_slice(&slices[i], options, json))
			status = EXIT_DEVICE;
	if (status == EXIT_OK)
		status = run_slices(slices, count, json, ready);
	for (unsigned int i = 0; i < count; i++)
		close_slice(&slices[i]);
	free(slices);
	return status;
}
