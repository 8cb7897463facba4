/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line per event on standard error: "PREFIX key=value ... text".
 *
 * Any thread may call this.  A line is written by one write() of at most VGPU_LOG_BYTES; a longer
 * line is truncated. errno is preserved.
 */
#ifndef VGPU_EXECUTOR_LOG_H
#define VGPU_EXECUTOR_LOG_H

#include <stdarg.h>
#include <stddef.h>

#define VGPU_LOG_BYTES	512u

/* Call it before any other function and before starting threads.  @prefix is not copied. */
void vgpu_log_open(const char *prefix);
/* @level is a priority of syslog.h.  Debug lines are dropped unless VGPUMGR_DEBUG is set. */
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void vgpu_log_list(int level, const char *format, va_list list);
/* Replaces all characters except printable ASCII in place: the text may come from a hostile process. */
void vgpu_log_clean(char *text, size_t bytes);

#endif /* VGPU_EXECUTOR_LOG_H */
