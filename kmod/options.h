/* SPDX-License-Identifier: GPL-2.0 */
/* Options of the module that are numbers: see options.c */
#ifndef VGPU_OPTIONS_H
#define VGPU_OPTIONS_H

#include <linux/limits.h>
#include <linux/moduleparam.h>

#define VGPU_OPTION_MS_MAX	(60U * 60 * 1000)

/**
 * struct vgpu_option - what module_param_cb() is given with vgpu_option_ops
 * @value: as set last; changes at any time where the option may be written
 * @min: least @value that is taken
 * @max: greatest @value that is taken
 */
struct vgpu_option {
	unsigned int value;
	unsigned int min;
	unsigned int max;
};

extern const struct kernel_param_ops vgpu_option_ops;

#endif
