// SPDX-License-Identifier: Apache-2.0
/*
 * The control calls that a child may make.  A call that is in no list here is refused: with
 * parameters that contain a pointer unknown to the relay, a child could read and write the relay's
 * memory.
 */
#include <stddef.h>
#include <string.h>

#include "executor/gate/rm_calls.h"

#define COUNT(array)	(sizeof(array) / sizeof((array)[0]))
#define ANY_BYTES	0

/*
 * Calls whose parameters have no pointers.  They query something, or concern the child's own events
 * and memory.  Some calls are missing although libraries make them: calls that change clocks, the
 * timer or the partition of processors for all clients, that report other processes, that let a
 * debugger stop a context, or that pass memory to another process (0x3d05 and similar), which
 * nobody would count.
 */
static const uint32_t simple[] = {
	/* of a client */
	0x0102,	/* SYSTEM_GET_CPU_INFO */
	0x012b,	/* SYSTEM_GET_P2P_CAPS_V2 */
	0x0136,	/* SYSTEM_GET_FABRIC_STATUS */
	0x013a,	/* SYSTEM_GET_P2P_CAPS_MATRIX */
	0x01f0,	/* SYSTEM_GET_FEATURES */
	0x0201, 0x0204, 0x0205,	/* GPU_GET_ATTACHED_IDS, GPU_GET_DEVICE_IDS, GPU_GET_ID_INFO_V2 */
	0x0214, 0x0215, 0x0216,	/* GPU_GET_PROBED_IDS, GPU_ATTACH_IDS, GPU_DETACH_IDS */
	0x021b,	/* GPU_GET_PCI_INFO */
	0x0275,	/* GPU_GET_UUID_FROM_GPU_ID */
	0x0279, 0x027b,	/* GPU_QUERY_DRAIN_STATE, GPU_GET_MEMOP_ENABLE */
	0x0288, 0x0289, 0x0290,	/* GPU_GET_ACTIVE_DEVICE_IDS, GPU_ASYNC_ATTACH_ID, GPU_WAIT_ATTACH_ID */
	0x0a04,	/* SYNC_GPU_BOOST_GROUP_INFO */
	0x0d01,	/* CLIENT_GET_ADDR_SPACE_TYPE */
	/* of a device */
	0x800280, 0x800288, 0x800289,	/* GPU_GET_NUM_SUBDEVICES, ..._PERSISTENCE, ..._MODE */
	0x800292,	/* GPU_GET_CLASSLIST_V2 */
	0x801307,	/* FB_GET_CAPS_V2 */
	0x801402,	/* HOST_GET_CAPS_V2 */
	0x801806, 0x80180d,	/* DMA_ADV_SCHED_GET_VA_CAPS (of addresses), DMA_GET_CAPS */
	/* of a subdevice */
	0x20800102, 0x20800110, 0x20800111, 0x20800119,	/* GPU_GET_INFO_V2, names, simulation */
	0x2080012f, 0x20800131,	/* GPU_QUERY_ECC_STATUS, GPU_QUERY_COMPUTE_MODE_RULES */
	0x20800133, 0x2080013f,	/* GPU_QUERY_ECC_CONFIGURATION, GPU_GET_OEM_BOARD_INFO */
	0x20800142, 0x2080014a,	/* GPU_GET_ID, GPU_GET_GID_INFO */
	0x2080014b, 0x20800156, 0x20800157,	/* GPU_GET_INFOROM_..._VERSION, GPU_QUERY_INFOROM_ECC_SUPPORT */
	0x20800170, 0x2080018b,	/* GPU_GET_ENGINES_V2, GPU_GET_ACTIVE_PARTITION_IDS */
	0x20800195, 0x208001a3,	/* GPU_GET_COMPUTE_POLICY_CONFIG, GET_GPU_FABRIC_PROBE_INFO */
	0x2080019f,	/* GPU_GET_SKYLINE_INFO */
	0x20800301,	/* EVENT_SET_NOTIFICATION */
	0x20800403, 0x20800406,	/* TIMER_GET_TIME, TIMER_GET_GPU_CPU_TIME_CORRELATION_INFO */
	0x20801218, 0x2080121b, 0x20801227,	/* GR_GET_CTX_BUFFER_SIZE, ..._SM_ORDER, ..._CAPS_V2 */
	0x2080122a, 0x2080122b, 0x20801230,	/* GR_GET_GPC_MASK, ..._TPC_MASK, ..._ISSUE_RATE_MODIFIER */
	0x2080123c,	/* GR_GET_SM_ISSUE_RATE_MODIFIER_V2 */
	0x20801303,	/* FB_GET_INFO_V2 */
	0x20801357, 0x20801358,	/* FB_QUERY_DRAM_ENCRYPTION_..._SUPPORT, ..._STATUS */
	0x20801701,	/* MC_GET_ARCH_INFO */
	0x20801801, 0x20801803, 0x20801823,	/* BUS_GET_PCI_INFO, ..._BAR_INFO, ..._INFO_V2 */
	0x2080182a, 0x2080182b,	/* BUS_GET_PCIE_SUPPORTED_GPU_ATOMICS, BUS_GET_C2C_INFO */
	0x20802068,	/* PERF_GET_CURRENT_PSTATE */
	0x20802209, 0x2080220c, 0x20802210,	/* RC watchdog: information, release, soft disable */
	0x20802a03, 0x20802a0a,	/* CE_GET_CAPS_V2, CE_GET_ALL_CAPS */
	0x20803001, 0x20803002,	/* NVLINK_GET_NVLINK_CAPS, ..._STATUS */
	0x20803125,	/* FLCN_GET_CTX_BUFFER_SIZE */
	0x20803601,	/* GSP_GET_FEATURES */
	0x20803801,	/* GRMGR_GET_GR_FS_INFO */
	/* of a debugger: exceptions of the child's own kernels */
	0x83de0309, 0x83de030c, 0x83de0310,
	/* of other classes */
	0x90e60102,	/* MASTER_GET_VIRTUAL_FUNCTION_ERROR_CONT_INTR_MASK */
	RM_CMD_GET_TIMESLICE, RM_CMD_GROUP_GET_INFO,
	0x906f0101, 0xc36f0101, 0xc36f0108,	/* GET_CLASS_ENGINEID, GPFIFO_GET_WORK_SUBMIT_TOKEN */
	/* confidential compute: capabilities, state, channels, keys' state */
	0xcb330101, 0xcb330104, 0xcb33010b, 0xcb33010c,
};

/* Calls that need a check of their own in rm_check_control(). */
static const uint32_t special[] = {
	RM_CMD_GROUP_SCHEDULE, RM_CMD_CHANNEL_SCHEDULE, RM_CMD_GROUP_BIND, RM_CMD_CHANNEL_BIND,
	RM_CMD_SET_PREEMPTION_MODE, RM_CMD_PREEMPTION_BIND,
};

static const struct rm_layout pointing[] = {
	{ 0x0101, 40, 3, { 8, 16, 24 }, 0, 1 },	/* SYSTEM_GET_BUILD_VERSION */
	{ 0x410110, 16, 1, { 8 }, 0, 8 },	/* GET_SURFACE_INFO */
	{ 0x800201, 16, 1, { 8 }, 0, 4 },	/* GPU_GET_CLASSLIST */
	{ 0x80170d, 24, 2, { 8, 16 }, 0, 4 },	/* FIFO_GET_CHANNELLIST */
	{ 0x20800802, 16, 1, { 8 }, 0, 8 },	/* BIOS_GET_INFO */
	{ 0x20801201, 32, 1, { 8 }, 0, 8 },	/* GR_GET_INFO */
	{ 0x20801802, 16, 1, { 8 }, 0, 8 },	/* BUS_GET_INFO */
};

static bool has(const uint32_t *list, unsigned int count, uint32_t command)
{
	for (unsigned int i = 0; i < count; i++)
		if (list[i] == command)
			return true;
	return false;
}

const struct rm_layout *rm_control_layout(uint32_t command)
{
	static const struct rm_layout without = { .bytes = ANY_BYTES };

	if (has(simple, COUNT(simple), command) || has(special, COUNT(special), command))
		return &without;
	for (unsigned int i = 0; i < COUNT(pointing); i++)
		if (pointing[i].command == command)
			return &pointing[i];
	return NULL;
}

bool rm_concerns_gate(uint32_t command)
{
	return has(special, COUNT(special), command);
}

/*
 * The driver schedules a group or channel only after this call.  A child may make it once, to
 * enable scheduling.
 */
static uint32_t check_schedule(const struct rm_object *object, const void *parameters, uint32_t bytes)
{
	const struct rm_schedule *schedule = parameters;

	if (bytes != sizeof(*schedule))
		return RM_ERR_INVALID_PARAM_STRUCT;
	if (!object)
		return RM_ERR_OBJECT_NOT_FOUND;
	if (schedule->enable != 1 || schedule->skip_enable || object->scheduled)
		return RM_ERR_INSUFFICIENT_PERMISSIONS;
	return RM_OK;
}

/*
 * A channel may only be bound to the engine that its group was made for.  On another engine it
 * might not be stopped.
 */
static uint32_t check_bind(struct rm_objects *objects, const struct rm_object *object,
			   const void *parameters, uint32_t bytes)
{
	uint32_t engine;

	if (bytes != sizeof(engine))
		return RM_ERR_INVALID_PARAM_STRUCT;
	if (object && object->kind == RM_CHANNEL)
		object = rm_find(objects, object->client, object->parent);
	if (!object || object->kind != RM_GROUP)
		return RM_ERR_OBJECT_NOT_FOUND;
	memcpy(&engine, parameters, sizeof(engine));
	return engine == object->engine ? RM_OK : RM_ERR_INSUFFICIENT_PERMISSIONS;
}

/**
 * struct preemption - common fields of the two preemption calls, one of which has two sizes
 * @channel: a channel or a group
 */
struct preemption {
	uint32_t client;
	uint32_t channel;
	uint32_t flags;
	uint32_t compute;
};

static bool read_preemption(const struct rm_control *control, const void *parameters,
			    struct preemption *preemption)
{
	struct rm_preemption_bind_8 brief;
	struct rm_preemption_bind_9 bind;
	struct rm_preemption_mode mode;

	if (control->cmd == RM_CMD_SET_PREEMPTION_MODE && control->params_size == sizeof(mode)) {
		memcpy(&mode, parameters, sizeof(mode));
		*preemption = (struct preemption){ control->client, mode.channel, mode.flags, mode.compute };
		return true;
	}
	if (control->cmd == RM_CMD_PREEMPTION_BIND && control->params_size == sizeof(brief)) {
		memcpy(&brief, parameters, sizeof(brief));
		*preemption = (struct preemption){ brief.client, brief.channel, brief.flags, brief.compute };
		return true;
	}
	if (control->cmd == RM_CMD_PREEMPTION_BIND && control->params_size == sizeof(bind)) {
		memcpy(&bind, parameters, sizeof(bind));
		*preemption = (struct preemption){ bind.client, bind.channel, bind.flags, bind.compute };
		return true;
	}
	return false;
}

/* Kernels must stay preemptible: otherwise the gate would have to wait until a kernel ends. */
static uint32_t check_preemption(struct rm_objects *objects, const struct rm_control *control,
				 const void *parameters)
{
	struct preemption preemption;

	if (!read_preemption(control, parameters, &preemption))
		return RM_ERR_INVALID_PARAM_STRUCT;
	if (!rm_owns(objects, preemption.client))
		return RM_ERR_INVALID_CLIENT;
	if (preemption.flags & RM_PREEMPTION_SETS_COMPUTE && preemption.compute != RM_COMPUTE_CILP)
		return RM_ERR_INSUFFICIENT_PERMISSIONS;
	return RM_OK;
}

static void note_preemption(struct rm_objects *objects, const struct rm_control *control,
			    const void *parameters)
{
	struct preemption preemption;

	if (!read_preemption(control, parameters, &preemption) ||
	    !(preemption.flags & RM_PREEMPTION_SETS_COMPUTE))
		return;
	for (uint32_t i = 0; i < objects->count; i++) {
		struct rm_object *object = &objects->list[i];

		if (object->client == preemption.client &&
		    (object->handle == preemption.channel || object->parent == preemption.channel))
			object->unpreemptible = false;
	}
}

uint32_t rm_check_control(struct rm_objects *objects, const struct rm_control *control,
			  const void *parameters)
{
	const struct rm_layout *layout = rm_control_layout(control->cmd);
	const struct rm_object *object = rm_find(objects, control->client, control->object);

	if (!rm_owns(objects, control->client))
		return RM_ERR_INVALID_CLIENT;
	if (!layout || control->flags)
		return RM_ERR_INSUFFICIENT_PERMISSIONS;
	if (layout->bytes && layout->bytes != control->params_size)
		return RM_ERR_INVALID_PARAM_STRUCT;
	switch (control->cmd) {
	case RM_CMD_GROUP_SCHEDULE:
	case RM_CMD_CHANNEL_SCHEDULE:
		return check_schedule(object, parameters, control->params_size);
	case RM_CMD_GROUP_BIND:
	case RM_CMD_CHANNEL_BIND:
		return check_bind(objects, object, parameters, control->params_size);
	case RM_CMD_SET_PREEMPTION_MODE:
	case RM_CMD_PREEMPTION_BIND:
		return check_preemption(objects, control, parameters);
	default:
		return RM_OK;
	}
}

void rm_note_control(struct rm_objects *objects, const struct rm_control *control, const void *parameters)
{
	struct rm_object *object = rm_find(objects, control->client, control->object);

	switch (control->cmd) {
	case RM_CMD_GROUP_SCHEDULE:
	case RM_CMD_CHANNEL_SCHEDULE:
		if (object)
			object->scheduled = true;
		break;
	case RM_CMD_SET_PREEMPTION_MODE:
	case RM_CMD_PREEMPTION_BIND:
		note_preemption(objects, control, parameters);
		break;
	default:
		break;
	}
}
