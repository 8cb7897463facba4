// SPDX-License-Identifier: GPL-2.0
/*
 * For people only: vgpumgr/runs shows how long each tenant's runs were.
 * Programs use the netlink family, because this format may change at any time.
 */
#include <linux/debugfs.h>
#include <linux/ktime.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "control/debugfs.h"
#include "engine/engine.h"

static void vgpu_debugfs_tenant(struct seq_file *file, struct vgpu_tenant *tenant,
				struct vgpu_group_stats *stats)
{
	struct vgpu_engine *engine = &tenant->parent->engine;
	u64 timeslice_ns;
	u64 now_ns;
	s64 lag_ns;
	u32 i;

	spin_lock_irq(&engine->lock);
	now_ns = vgpu_engine_advance(engine, ktime_get_ns());
	lag_ns = vgpu_group_lag_ns(&engine->sched, &tenant->group, now_ns);
	vgpu_engine_settle(engine, &tenant->group, now_ns);
	*stats = tenant->group.stats;
	timeslice_ns = tenant->group.params.timeslice_ns;
	spin_unlock_irq(&engine->lock);
	seq_printf(file, "%s %s timeslice_ns=%llu lag_ns=%lld runs=%llu longest_ns=%llu\n",
		   tenant->parent->name, tenant->name, timeslice_ns, lag_ns, stats->runs,
		   stats->longest_run_ns);
	for (i = 0; i < VGPU_HIST_BUCKETS; i++)
		if (stats->histogram[i])
			seq_printf(file, "\t>= %llu ns: %llu\n",
				   vgpu_hist_bucket_start_ns(i), stats->histogram[i]);
}

static int runs_show(struct seq_file *file, void *unused)
{
	char name[sizeof_field(struct vgpu_parent, name)] = "";
	struct vgpu_group_stats *stats;
	struct vgpu_parent *parent;
	struct vgpu_tenant *tenant;

	stats = kmalloc(sizeof(*stats), GFP_KERNEL);
	if (!stats)
		return -ENOMEM;
	while ((parent = vgpu_parent_next(name, false))) {
		mutex_lock(&parent->lock);
		list_for_each_entry(tenant, &parent->tenants, node)
			if (tenant->configured)
				vgpu_debugfs_tenant(file, tenant, stats);
		strscpy(name, parent->name, sizeof(name));
		vgpu_parent_unlock(parent);
	}
	kfree(stats);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(runs);

void vgpu_debugfs_init(void)
{
	vgpu_debugfs = debugfs_create_dir("vgpumgr", NULL);
	debugfs_create_file("runs", 0400, vgpu_debugfs, NULL, &runs_fops);
}

void vgpu_debugfs_exit(void)
{
	debugfs_remove_recursive(vgpu_debugfs);
}
