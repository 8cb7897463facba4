// SPDX-License-Identifier: GPL-2.0
/*
 * Numeric module options. A value out of range changes nothing, and the log names the
 * option.
 */
#include <linux/kstrtox.h>
#include <linux/printk.h>
#include <linux/sysfs.h>

#include "options.h"

static int vgpu_option_set(const char *text, const struct kernel_param *param)
{
	struct vgpu_option *option = param->arg;
	unsigned int value;
	int ret;

	ret = kstrtouint(text, 0, &value);
	if (!ret && (value < option->min || value > option->max))
		ret = -ERANGE;
	if (ret)
		pr_warn_ratelimited("vgpumgr: option %s refused: %pe; valid range is %u to %u\n",
				    param->name, ERR_PTR(ret), option->min, option->max);
	else
		WRITE_ONCE(option->value, value);
	return ret;
}

static int vgpu_option_get(char *text, const struct kernel_param *param)
{
	const struct vgpu_option *option = param->arg;

	return sysfs_emit(text, "%u\n", READ_ONCE(option->value));
}

const struct kernel_param_ops vgpu_option_ops = {
	.set = vgpu_option_set,
	.get = vgpu_option_get,
};
