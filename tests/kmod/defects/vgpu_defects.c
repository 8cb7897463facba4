// SPDX-License-Identifier: GPL-2.0
/*
 * Does on purpose what the debug kernel must report: insmod vgpu_defects.ko what=NAME.
 * Only tests of the lab load it; loading it never succeeds.
 */
#include <linux/errno.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>

static char *what = "";
module_param(what, charp, 0);
MODULE_PARM_DESC(what, "inversion, sleep, leak, shift or use-after-free");

static DEFINE_MUTEX(defect_first);
static DEFINE_MUTEX(defect_second);
static DEFINE_SPINLOCK(defect_spin);

/* No thread waits: the order alone is the defect. */
static void defect_inversion(void)
{
	mutex_lock(&defect_first);
	mutex_lock(&defect_second);
	mutex_unlock(&defect_second);
	mutex_unlock(&defect_first);
	mutex_lock(&defect_second);
	mutex_lock(&defect_first);
	mutex_unlock(&defect_first);
	mutex_unlock(&defect_second);
}

static void defect_sleep(void)
{
	spin_lock(&defect_spin);
	kfree(kmalloc(16, GFP_KERNEL));
	spin_unlock(&defect_spin);
}

static void defect_leak(void)
{
	int i;

	/* Several allocations, because stray data may look like a pointer to one of them. */
	for (i = 0; i < 16; i++)
		strscpy((char *)kmalloc(192, GFP_KERNEL), "lost", 192);
}

static void defect_use_after_free(void)
{
	char *bytes = kmalloc(64, GFP_KERNEL);

	kfree(bytes);
	OPTIMIZER_HIDE_VAR(bytes);
	bytes[3] = 1;
}

static void defect_shift(void)
{
	static unsigned int shifted;
	unsigned int bits = 33;

	OPTIMIZER_HIDE_VAR(bits);
	WRITE_ONCE(shifted, 1U << bits);
}

static const struct {
	const char *name;
	void (*act)(void);
} defects[] = {
	{ "inversion", defect_inversion },
	{ "sleep", defect_sleep },
	{ "leak", defect_leak },
	{ "shift", defect_shift },
	{ "use-after-free", defect_use_after_free },
};

static int __init defect_init(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(defects); i++) {
		if (!strcmp(what, defects[i].name)) {
			defects[i].act();
			return -ECANCELED;
		}
	}
	return -EINVAL;
}

module_init(defect_init);
MODULE_DESCRIPTION("Deliberate defects");
MODULE_LICENSE("GPL");
