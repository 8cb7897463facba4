// SPDX-License-Identifier: GPL-2.0
/*
 * Lists of GPUs, tenants and slices, read in parts of any length while all come and go. Every
 * object that existed all the time is listed, none is listed twice, and the list reports a
 * change exactly when there was one.
 *
 *	fuzz_dump SEED LISTS
 */
#include "sim.h"

#include "control/netlink.h"

#define GPUS 4
#define TENANTS 8
#define SLICES 4
#define PART_MAX 4	/* messages */

struct genl_family vgpu_family;

static struct vgpu_parent gpus[GPUS];	/* @generation: number of the change that created it */
static u64 gpu_lives[GPUS];	/* the same; kept when it goes: a list may refer to it */
static struct vgpu_tenant tenants[GPUS * TENANTS];	/* the same; 0: it does not exist */
static struct vgpu_device slices[GPUS * SLICES];
static u64 slice_lives[GPUS * SLICES];	/* as @generation */
static unsigned int changes = 1;
static u64 ids;
static u64 lists, changed_lists, empty_lists, refused_lists, parts;

static struct nlmsghdr messages[PART_MAX + 1];	/* the last one is removed again */
static const void *objects[PART_MAX];	/* the object of each message */
static u64 lives[PART_MAX];		/* which life of that object */
static unsigned int room;
static const char *only;

/* This program has neither guests nor other parts of the module. */
int guest_access(struct vfio_device *vdev, u64 guest, void *data, size_t bytes, bool write)
{
	REQUIRE(!"a list touches no guest memory");
	return -EFAULT;
}

void guest_let_go(struct vfio_device *vdev) { (void)vdev; }
unsigned int vgpu_netlink_objects(void) { return changes; }

/* ---- messages, as many as there is room for */

struct nlattr **vgpu_dump_attrs(struct netlink_callback *cb)
{
	static struct nlattr *attrs[max(VGPUMGR_A_TENANT_GPU, VGPUMGR_A_SLICE_GPU) + 1];

	(void)cb;
	attrs[VGPUMGR_A_TENANT_GPU] = (struct nlattr *)only;
	attrs[VGPUMGR_A_SLICE_GPU] = (struct nlattr *)only;
	return attrs;
}

void *nla_data(const struct nlattr *attr) { return (void *)attr; }

void *genlmsg_put(struct sk_buff *skb, u32 portid, u32 seq, const struct genl_family *family,
		  int flags, u8 command)
{
	if (skb->len == room && sim_one_in(2))
		return NULL;	/* not even for the header */
	messages[skb->len].nlmsg_flags = flags;
	return &messages[skb->len++];
}

void genlmsg_cancel(struct sk_buff *skb, void *header) { skb->len--; }
void genlmsg_end(struct sk_buff *skb, void *header) { REQUIRE(skb->len <= room); }

static int put(struct sk_buff *skb, const void *object, u64 life)
{
	if (skb->len > room)
		return -EMSGSIZE;
	REQUIRE(life);
	objects[skb->len - 1] = object;
	lives[skb->len - 1] = life;
	return 0;
}

int vgpu_put_gpu(struct sk_buff *skb, struct vgpu_parent *parent)
{
	return put(skb, parent, gpu_lives[parent - gpus]);
}

int vgpu_put_tenant(struct sk_buff *skb, struct vgpu_tenant *tenant)
{
	return put(skb, tenant, tenant->generation);
}

int vgpu_put_slice(struct sk_buff *skb, struct vgpu_device *slice)
{
	return put(skb, slice, slice_lives[slice - slices]);
}

/* ---- what comes and goes */

static void change_gpu(struct vgpu_parent *gpu)
{
	mutex_lock(&vgpu_parents_lock);
	changes += 2;
	if (gpu->generation)
		list_del(&gpu->node);
	else
		list_add_tail(&gpu->node, &vgpu_parents);
	gpu->generation = gpu->generation ? 0 : changes;
	if (gpu->generation)
		gpu_lives[gpu - gpus] = changes;
	mutex_unlock(&vgpu_parents_lock);
}

static void change_tenant(struct vgpu_parent *gpu, struct vgpu_tenant *tenant)
{
	mutex_lock(&gpu->lock);
	changes += 2;
	tenant->id = ++ids;
	if (tenant->generation)
		list_del(&tenant->node);
	else
		list_add_tail(&tenant->node, &gpu->tenants);
	tenant->generation = tenant->generation ? 0 : changes;
	mutex_unlock(&gpu->lock);
}

/* With a new UUID, or with its old one. */
static void change_slice(struct vgpu_parent *gpu, struct vgpu_device *slice)
{
	u64 *life = &slice_lives[slice - slices];

	mutex_lock(&gpu->lock);
	changes += 2;
	if (*life) {
		list_del(&slice->node);
	} else {
		if (sim_one_in(2))
			slice->uuid.b[0] = sim_random();
		list_add_tail(&slice->node, &gpu->devices);
	}
	*life = *life ? 0 : changes;
	mutex_unlock(&gpu->lock);
}

static void change(void)
{
	unsigned int gpu = sim_below(GPUS);

	if (sim_one_in(8))
		change_gpu(&gpus[gpu]);
	else if (sim_one_in(3))
		change_slice(&gpus[gpu], &slices[gpu * SLICES + sim_below(SLICES)]);
	else
		change_tenant(&gpus[gpu], &tenants[gpu * TENANTS + sim_below(TENANTS)]);
}

static int operate(void *data)
{
	while (!kthread_should_stop()) {
		if (sim_one_in(4))
			change();
		sim_preempt();
	}
	return 0;
}

/* ---- lists */

enum kind { OF_GPUS, OF_TENANTS, OF_SLICES, KINDS };

/* The life that was listed. */
struct listed { u64 gpus[GPUS], tenants[GPUS * TENANTS], slices[GPUS * SLICES]; };

/* Lives of one object come in order. */
static void note(struct listed *listed, const void *object, u64 life)
{
	u64 *before;

	if (object >= (void *)gpus && object < (void *)(gpus + GPUS))
		before = &listed->gpus[(struct vgpu_parent *)object - gpus];
	else if (object >= (void *)slices && object < (void *)(slices + GPUS * SLICES))
		before = &listed->slices[(struct vgpu_device *)object - slices];
	else
		before = &listed->tenants[(struct vgpu_tenant *)object - tenants];
	REQUIRE(life > *before);
	*before = life;
}

/* An object that was removed and created again is a different one. */
static bool stayed(u64 came, unsigned int began) { return came && came <= began; }

/* An object that stayed, on a GPU that stayed, is in a list of its kind for that GPU. */
static void check_on_gpus(const u64 *listed, unsigned int each, bool wanted, unsigned int began,
			  u64 (*came)(unsigned int number))
{
	for (unsigned int i = 0; i < GPUS * each; i++) {
		const struct vgpu_parent *gpu = &gpus[i / each];

		if (stayed(gpu->generation, began) && stayed(came(i), began))
			REQUIRE(!listed[i] == !(wanted && (!only || only == gpu->name)));
	}
}

static u64 tenant_came(unsigned int number) { return tenants[number].generation; }
static u64 slice_came(unsigned int number) { return slice_lives[number]; }

static void check(const struct listed *listed, enum kind kind, unsigned int began)
{
	for (int i = 0; i < GPUS; i++)
		if (stayed(gpus[i].generation, began))
			REQUIRE(!listed->gpus[i] == (kind != OF_GPUS));
	check_on_gpus(listed->tenants, TENANTS, kind == OF_TENANTS, began, tenant_came);
	check_on_gpus(listed->slices, SLICES, kind == OF_SLICES, began, slice_came);
}

static int start(enum kind kind, struct netlink_callback *cb)
{
	switch (kind) {
	case OF_TENANTS: return vgpu_tenants_dump_start(cb);
	case OF_SLICES: return vgpu_slices_dump_start(cb);
	default: return vgpu_gpus_dump_start(cb);
	}
}

static int take(enum kind kind, struct sk_buff *skb, struct netlink_callback *cb)
{
	switch (kind) {
	case OF_TENANTS: return vgpu_tenants_dump(skb, cb);
	case OF_SLICES: return vgpu_slices_dump(skb, cb);
	default: return vgpu_gpus_dump(skb, cb);
	}
}

static void list(enum kind kind)
{
	struct nlmsghdr request = {}, done = {};
	struct netlink_callback cb = { .nlh = &request };
	unsigned int began = changes, ended;
	struct listed listed = {};
	bool flagged = false;
	struct sk_buff skb;
	int ret;

	only = kind != OF_GPUS && sim_one_in(3) ? gpus[sim_below(GPUS)].name : NULL;
	REQUIRE(!start(kind, &cb));
	do {
		room = 1 + sim_below(PART_MAX);
		skb.len = 0;
		ret = take(kind, &skb, &cb);
		REQUIRE(ret <= 0 || ret == (int)skb.len);
		for (unsigned int i = 0; i < skb.len; i++) {
			note(&listed, objects[i], lives[i]);
			flagged |= messages[i].nlmsg_flags & NLM_F_DUMP_INTR;
		}
		parts++;
	} while (ret > 0);
	ended = changes;
	lists++;
	if (ret) {
		REQUIRE(ret == -ENODEV && only);
		refused_lists++;
		return;
	}
	nl_dump_check_consistent(&cb, &done);
	flagged |= done.nlmsg_flags & NLM_F_DUMP_INTR;
	REQUIRE(flagged == (began != ended));
	check(&listed, kind, began);
	changed_lists += flagged;
	empty_lists += !memcmp(&listed, &(struct listed){}, sizeof(listed));
}

int main(int argc, char **argv)
{
	u64 seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
	u64 most = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;
	struct task_struct *operator;

	sim_begin((u8 *)&seed, sizeof(seed));
	sim_input_left = 0;
	for (int i = 0; i < GPUS; i++) {
		snprintf(gpus[i].name, sizeof(gpus[i].name), "gpu-%d", i);
		kref_init(&gpus[i].refs);
		mutex_init(&gpus[i].lock);
		INIT_LIST_HEAD(&gpus[i].tenants);
		INIT_LIST_HEAD(&gpus[i].devices);
	}
	for (int i = 0; i < GPUS * SLICES; i++)
		slices[i].uuid.b[1] = i;	/* no other has it */
	operator = kthread_run(operate, NULL, "operator");
	while (lists < most)
		list(sim_below(KINDS));
	kthread_stop(operator);
	for (int i = 0; i < GPUS; i++)
		REQUIRE(gpus[i].refs.count == 1);
	printf("{\"lists\": %lu, \"changed\": %lu, \"unchanged\": %lu, \"empty\": %lu, \"refused\": %lu, \"parts\": %lu}\n",
	       lists, changed_lists, lists - changed_lists, empty_lists, refused_lists, parts);
	return 0;
}
