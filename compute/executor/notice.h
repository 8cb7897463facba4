/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines that somebody else can cause as often as they like: at most one a second is
 * logged, and the others are counted.
 */
#ifndef VGPU_EXECUTOR_NOTICE_H
#define VGPU_EXECUTOR_NOTICE_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct vgpu_notice - one kind of line; zeroed before its first use
 * @until_ns: CLOCK_MONOTONIC; lines are counted until then
 * @left_out: how many were, and have not been told of
 */
struct vgpu_notice {
	uint64_t until_ns;
	uint64_t left_out;
};

/* A line is to be logged: true if it may be, else it is counted. */
bool vgpu_notice_may(struct vgpu_notice *notice, uint64_t now_ns);

/* When vgpu_notice_take() has a count, or UINT64_MAX. */
uint64_t vgpu_notice_due_ns(const struct vgpu_notice *notice);

/* How many lines were left out, to be logged now in their place; 0: nothing is to be. */
uint64_t vgpu_notice_take(struct vgpu_notice *notice, uint64_t now_ns);

#endif /* VGPU_EXECUTOR_NOTICE_H */
