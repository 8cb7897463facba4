// SPDX-License-Identifier: Apache-2.0
#include "executor/supervisor/output.h"

#include <errno.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/log.h"

void vgpu_output_open(struct vgpu_output *output, int pipe, uint64_t now_ns)
{
	*output = (struct vgpu_output){
		.pipe = pipe, .room = VGPU_OUTPUT_BURST, .room_at_ns = now_ns,
	};
}

static void refill(struct vgpu_output *output, uint64_t now_ns)
{
	uint64_t more = (now_ns - output->room_at_ns) / 1000 * VGPU_OUTPUT_RATE / 1000000;

	if (!more)
		return;
	output->room_at_ns = now_ns;
	output->room += more;
	if (output->room > VGPU_OUTPUT_BURST)
		output->room = VGPU_OUTPUT_BURST;
}

static void flush(struct vgpu_output *output, const char *who, uint64_t number)
{
	if (output->length && output->room >= output->length) {
		output->room -= output->length;
		vgpu_log_clean(output->line, output->length);
		vgpu_log(LOG_INFO, "%s=%llu event=output %.*s", who, (unsigned long long)number,
			 (int)output->length, output->line);
	} else {
		output->dropped += output->length;
	}
	output->length = 0;
}

bool vgpu_output_read(struct vgpu_output *output, const char *who, uint64_t number, uint64_t now_ns)
{
	char bytes[4096];
	ssize_t count = read(output->pipe, bytes, sizeof(bytes));

	if (count <= 0)
		return count < 0 && (errno == EAGAIN || errno == EINTR);
	refill(output, now_ns);
	for (ssize_t i = 0; i < count; i++) {
		if (bytes[i] == '\n')
			flush(output, who, number);
		else
			output->line[output->length++] = bytes[i];
		if (output->length == sizeof(output->line))
			flush(output, who, number);
	}
	return true;
}

void vgpu_output_close(struct vgpu_output *output, const char *who, uint64_t number,
		       uint64_t now_ns)
{
	if (output->pipe < 0)
		return;
	/* A pipe has at most 64 KiB, and no process writes to it any more. */
	for (unsigned int i = 0; i < 16; i++)
		if (!vgpu_output_read(output, who, number, now_ns))
			break;
	flush(output, who, number);
	if (output->dropped)
		vgpu_log(LOG_WARNING, "%s=%llu event=output dropped_bytes=%llu", who,
			 (unsigned long long)number, (unsigned long long)output->dropped);
	close(output->pipe);
	output->pipe = -1;
}
