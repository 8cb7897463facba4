/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line per event on standard error: "PREFIX key=value ... text".
 *
 * Any thread.  A line is one write of at most VGPU_LOG_BYTES; what is longer is
 * cut.  errno is kept.
 */
#ifndef VGPU_EXECUTOR_LOG_H
#define VGPU_EXECUTOR_LOG_H

#include <stdarg.h>
#include <stddef.h>

#define VGPU_LOG_BYTES	512u

/* Before any other call and before other threads; @prefix is not copied. */
void vgpu_log_open(const char *prefix);
/* @level is of syslog.h; debug lines are dropped unless VGPUMGR_DEBUG is set. */
void vgpu_log(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));
void vgpu_log_list(int level, const char *format, va_list list);
/* Replaces in place what is not printable ASCII: text of a hostile process. */
void vgpu_log_clean(char *text, size_t bytes);

#endif /* VGPU_EXECUTOR_LOG_H */
