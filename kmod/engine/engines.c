// SPDX-License-Identifier: GPL-2.0
/* The list of engines, and the engine with which a new accelerator begins. */
#include <linux/module.h>
#include <linux/string.h>

#include "engine/engine.h"

static const struct vgpu_engine_ops *const vgpu_engines[] = {
	&vgpu_soft_engine,
	&vgpu_edu_engine,
	&vgpu_lease_engine,
};

/*
 * The engine with which a newly bound function begins. Only the module
 * parameter changes it.
 */
const struct vgpu_engine_ops *vgpu_engine_default = &vgpu_soft_engine;

/* The module's directory in debugfs, where engines create their files. */
struct dentry *vgpu_debugfs;

/**
 * vgpu_engine_find - find an engine by name
 * @name: name as written to an attribute, a newline may follow
 *
 * Return: the engine, or NULL if none has that name.
 */
const struct vgpu_engine_ops *vgpu_engine_find(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(vgpu_engines); i++)
		if (sysfs_streq(name, vgpu_engines[i]->name))
			return vgpu_engines[i];
	return NULL;
}

/**
 * vgpu_engine_suits - check whether an engine can drive an accelerator
 * @ops: the engine
 * @parent: the accelerator; an adopted one is driven by its vendor's driver
 */
bool vgpu_engine_suits(const struct vgpu_engine_ops *ops, const struct vgpu_parent *parent)
{
	return parent->adopted ? ops->lends : ops->drives(parent->pdev);
}

/**
 * vgpu_engines_show - names of the engines that can drive an accelerator
 * @parent: the accelerator
 * @text: buffer of a sysfs attribute
 */
ssize_t vgpu_engines_show(const struct vgpu_parent *parent, char *text)
{
	ssize_t length = 0;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(vgpu_engines); i++)
		if (vgpu_engine_suits(vgpu_engines[i], parent))
			length += sysfs_emit_at(text, length, "%s%s", length ? " " : "",
						vgpu_engines[i]->name);
	return length + sysfs_emit_at(text, length, "\n");
}

static int vgpu_engine_param_set(const char *value, const struct kernel_param *param)
{
	const struct vgpu_engine_ops *ops = vgpu_engine_find(value);

	if (!ops) {
		pr_warn_ratelimited("vgpumgr: option engine refused: %pe; unknown engine\n",
				    ERR_PTR(-EINVAL));
		return -EINVAL;
	}
	vgpu_engine_default = ops;
	return 0;
}

static int vgpu_engine_param_get(char *text, const struct kernel_param *param)
{
	return sysfs_emit(text, "%s\n", vgpu_engine_default->name);
}

static const struct kernel_param_ops vgpu_engine_param_ops = {
	.set = vgpu_engine_param_set,
	.get = vgpu_engine_param_get,
};
module_param_cb(engine, &vgpu_engine_param_ops, NULL, 0444);
MODULE_PARM_DESC(engine, "engine of each accelerator when it is bound: soft (default), edu, lease");
