/* SPDX-License-Identifier: GPL-2.0 */
/* Exit statuses of vgpu-guest and vgpu-client. */
#ifndef VGPU_TOOL_EXIT_H
#define VGPU_TOOL_EXIT_H

enum exit_status {
	EXIT_OK = 0,
	EXIT_WRONG = 1,	      /* a result or an answer differs from what it must be */
	EXIT_USAGE = 2,	      /* invalid command line */
	EXIT_DEVICE = 3,      /* the device cannot be opened or used */
	EXIT_SILENT = 4,      /* nothing completed in time */
	EXIT_ERROR = 5,	      /* the device stopped with a sticky error */
	EXIT_UNSATURATED = 6, /* fewer items were queued than promised */
};

extern const char exit_help[];

#endif
