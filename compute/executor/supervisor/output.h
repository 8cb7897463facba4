/* SPDX-License-Identifier: Apache-2.0 */
/* Copies a child's output to the log, line by line: a limited amount, printable characters only. */
#ifndef VGPU_EXECUTOR_OUTPUT_H
#define VGPU_EXECUTOR_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define VGPU_OUTPUT_LINE	256u
/* Burst in bytes, and bytes per second. */
#define VGPU_OUTPUT_BURST	(16u << 10)
#define VGPU_OUTPUT_RATE	(2u << 10)

struct vgpu_output {
	int pipe;
	size_t length;
	uint64_t room;
	uint64_t room_at_ns;
	uint64_t dropped;
	char line[VGPU_OUTPUT_LINE];
};

void vgpu_output_open(struct vgpu_output *output, int pipe, uint64_t now_ns);
/* Reads once.  Return: false at the end. */
bool vgpu_output_read(struct vgpu_output *output, const char *who, uint64_t number,
		      uint64_t now_ns);
/* Reads the rest, logs how much was dropped, and closes the pipe. */
void vgpu_output_close(struct vgpu_output *output, const char *who, uint64_t number,
		       uint64_t now_ns);

#endif /* VGPU_EXECUTOR_OUTPUT_H */
