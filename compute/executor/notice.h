/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rate limit for log lines that another party can cause as often as it likes: at most one line per
 * second is logged, and the others are counted.
 */
#ifndef VGPU_EXECUTOR_NOTICE_H
#define VGPU_EXECUTOR_NOTICE_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct vgpu_notice - one kind of line; zeroed before its first use
 * @until_ns: CLOCK_MONOTONIC; lines are suppressed and counted until then
 * @left_out: number of suppressed lines that have not been reported
 */
struct vgpu_notice {
	uint64_t until_ns;
	uint64_t left_out;
};

/* Return: true if the line may be logged now; otherwise the line is counted. */
bool vgpu_notice_may(struct vgpu_notice *notice, uint64_t now_ns);

/* When vgpu_notice_take() will return a count; UINT64_MAX if no lines were suppressed. */
uint64_t vgpu_notice_due_ns(const struct vgpu_notice *notice);

/* Return: number of suppressed lines to report in the log now; 0 if there is nothing to report. */
uint64_t vgpu_notice_take(struct vgpu_notice *notice, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_NOTICE_H */
