// SPDX-License-Identifier: Apache-2.0
#include "executor/notice.h"

#define SECOND_NS	1000000000ull

/* Lines are suppressed until the count of earlier suppressed lines has been reported. */
bool vgpu_notice_may(struct vgpu_notice *notice, uint64_t now_ns)
{
	if (now_ns < notice->until_ns || notice->left_out) {
		notice->left_out++;
		return false;
	}
	notice->until_ns = now_ns + SECOND_NS;
	return true;
}

uint64_t vgpu_notice_due_ns(const struct vgpu_notice *notice)
{
	return notice->left_out ? notice->until_ns : UINT64_MAX;
}

uint64_t vgpu_notice_take(struct vgpu_notice *notice, uint64_t now_ns)
{
	uint64_t left_out = notice->left_out;

	if (now_ns < vgpu_notice_due_ns(notice))
		return 0;
	notice->left_out = 0;
	notice->until_ns = now_ns + SECOND_NS;
	return left_out;
}
