/* SPDX-License-Identifier: GPL-2.0 */
/* Numeric module options, see options.c */
#ifndef VGPU_OPTIONS_H
#define VGPU_OPTIONS_H

#include <linux/limits.h>
#include <linux/moduleparam.h>

#define VGPU_OPTION_MS_MAX	(60U * 60 * 1000)

/**
 * struct vgpu_option - argument of module_param_cb() with vgpu_option_ops
 * @value: value as last set; may change at any time if the option is writable
 * @min: smallest @value that is accepted
 * @max: largest @value that is accepted
 */
struct vgpu_option {
	unsigned int value;
	unsigned int min;
	unsigned int max;
};

extern const struct kernel_param_ops vgpu_option_ops;

#endif
