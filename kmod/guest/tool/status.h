/* SPDX-License-Identifier: GPL-2.0 */
/* What this guest has for computing, and why something does not work. */
#ifndef VGPU_TOOL_STATUS_H
#define VGPU_TOOL_STATUS_H

#include <stdbool.h>

/*
 * Print a line or record for each part. @root: "" or a directory to use as the root. Exit
 * status: EXIT_DEVICE if the device cannot be used, else EXIT_WRONG if OpenCL is not set
 * up for it.
 */
int status_run(const char *root, bool json);

#endif
