// SPDX-License-Identifier: GPL-2.0
/*
 * How an accelerator is shared as a whole: its policy, the places it sells, the
 * part that may be reserved, and the longest piece that is not interrupted. Netlink
 * (gpu-set) and the attributes below both make their changes here.
 */
#include <linux/device.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "control/policy.h"
#include "engine/engine.h"

static const char * const vgpu_policy_names[] = {
	[VGPU_POLICY_BEST_EFFORT] = "best_effort",
	[VGPU_POLICY_EQUAL_SHARE] = "equal_share",
	[VGPU_POLICY_FIXED_SHARE] = "fixed_share",
};

/**
 * vgpu_policy_choose - set the defaults of another policy
 * @params: changed, unless they already have @policy
 * @policy: any value
 */
void vgpu_policy_choose(struct vgpu_sched_params *params, enum vgpu_policy policy)
{
	if (params->policy == policy)
		return;
	params->policy = policy;
	params->places = 0;
	params->reserve_limit_permille =
		policy == VGPU_POLICY_BEST_EFFORT ? VGPU_RESERVE_LIMIT_MAX : 0;
}

/**
 * vgpu_parent_configure - change how an accelerator is shared
 * @parent: the accelerator, parent->lock held
 * @params: all parameters
 * @fault: out, with -ERANGE and -EBUSY: the parameter the scheduler refused
 *
 * Return: 0; -ERANGE for an illegal value; -EBUSY for a value that would break
 * promises to tenants.
 */
int vgpu_parent_configure(struct vgpu_parent *parent, const struct vgpu_sched_params *params,
			  enum vgpu_sched_field *fault)
{
	lockdep_assert_held(&parent->lock);
	*fault = vgpu_sched_params_check(params);
	if (*fault)
		return -ERANGE;
	*fault = vgpu_engine_configure(&parent->engine, params);
	if (*fault)
		return -EBUSY;
	parent->generation = vgpu_generation_next();
	return 0;
}

/* Change one number. */
static ssize_t vgpu_attr_store_u32(struct device *dev, const char *attribute, const char *text,
				   size_t count,
				   void (*set)(struct vgpu_sched_params *params, u32 value))
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);
	struct vgpu_sched_params params;
	enum vgpu_sched_field fault;
	u32 value;
	int ret;

	ret = kstrtou32(text, 10, &value);
	if (ret)
		return vgpu_attr_refused(dev, attribute, ret);
	mutex_lock(&parent->lock);
	params = vgpu_engine_params(&parent->engine);
	set(&params, value);
	ret = vgpu_parent_configure(parent, &params, &fault);
	mutex_unlock(&parent->lock);
	return ret ? vgpu_attr_refused(dev, attribute, ret) : count;
}

static ssize_t policy_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%s\n",
			  vgpu_policy_names[vgpu_engine_params(&parent->engine).policy]);
}

/* Parse "fixed_share" or "fixed_share places=8"; @field is the field at fault. */
static int vgpu_policy_parse(char *text, struct vgpu_sched_params *params, const char **field)
{
	char *word = strsep(&text, " ");
	const char *key;
	int policy;

	*field = "policy";
	policy = sysfs_match_string(vgpu_policy_names, word);
	if (policy < 0)
		return -EINVAL;
	vgpu_policy_choose(params, policy);
	if (!text)
		return 0;
	key = strsep(&text, "=");
	if (*key)
		*field = key;
	if (strcmp(key, "places") || !text)
		return -EINVAL;
	return kstrtou32(text, 10, &params->places);
}

static ssize_t policy_store(struct device *dev, struct device_attribute *attr, const char *text,
			    size_t count)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);
	struct vgpu_sched_params params;
	enum vgpu_sched_field fault;
	const char *field;
	char line[40];
	int ret;

	if (count >= sizeof(line) || strnlen(text, count) != count)
		return vgpu_attr_refused(dev, "policy", -EINVAL);
	strscpy(line, text, sizeof(line));
	mutex_lock(&parent->lock);
	params = vgpu_engine_params(&parent->engine);
	ret = vgpu_policy_parse(strim(line), &params, &field);
	if (!ret) {
		ret = vgpu_parent_configure(parent, &params, &fault);
		field = fault == VGPU_FIELD_PLACES ? "places" : "policy";
	}
	mutex_unlock(&parent->lock);
	return ret ? vgpu_attr_refused_for(dev, "policy", field, ret) : count;
}
DEVICE_ATTR_RW(policy);

static ssize_t places_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%u\n", vgpu_engine_params(&parent->engine).places);
}

static void vgpu_set_places(struct vgpu_sched_params *params, u32 places)
{
	params->places = places;
}

static ssize_t places_store(struct device *dev, struct device_attribute *attr, const char *text,
			    size_t count)
{
	return vgpu_attr_store_u32(dev, "places", text, count, vgpu_set_places);
}
DEVICE_ATTR_RW(places);

static ssize_t reserve_limit_permille_show(struct device *dev, struct device_attribute *attr,
					   char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%u\n",
			  vgpu_engine_params(&parent->engine).reserve_limit_permille);
}

static void vgpu_set_reserve_limit(struct vgpu_sched_params *params, u32 permille)
{
	params->reserve_limit_permille = permille;
}

static ssize_t reserve_limit_permille_store(struct device *dev, struct device_attribute *attr,
					    const char *text, size_t count)
{
	return vgpu_attr_store_u32(dev, "reserve_limit_permille", text, count,
				   vgpu_set_reserve_limit);
}
DEVICE_ATTR_RW(reserve_limit_permille);

static ssize_t max_chunk_us_show(struct device *dev, struct device_attribute *attr, char *text)
{
	struct vgpu_parent *parent = vgpu_parent_of(dev);

	return sysfs_emit(text, "%llu\n",
			  div_u64(vgpu_engine_params(&parent->engine).max_chunk_ns,
				  NSEC_PER_USEC));
}

static void vgpu_set_max_chunk(struct vgpu_sched_params *params, u32 us)
{
	params->max_chunk_ns = (u64)us * NSEC_PER_USEC;
}

static ssize_t max_chunk_us_store(struct device *dev, struct device_attribute *attr,
				  const char *text, size_t count)
{
	return vgpu_attr_store_u32(dev, "max_chunk_us", text, count, vgpu_set_max_chunk);
}
DEVICE_ATTR_RW(max_chunk_us);
