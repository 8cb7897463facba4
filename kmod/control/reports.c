// SPDX-License-Identifier: GPL-2.0
/* The functions that engine/ calls in higher layers. */
#include "engine/engine.h"

const struct vgpu_reports vgpu_reports = {
	.start = vgpu_events_start,
	.stop = vgpu_events_stop,
	.decided = vgpu_events_decided,
	.raise = vgpu_device_raise,
	.fault = vgpu_device_fault,
	.note_error = vgpu_device_note_error,
};
