// SPDX-License-Identifier: Apache-2.0
/*
 * A libnvidia-ml.so.1 that answers from a file, for the real pynvml to load.
 *
 * $FAKE_NVML names the file. Every call reads it again, so a test can change the answers while the program under
 * test runs. Lines, in any order:
 *
 *	init CODE			what nvmlInit returns (0 if not given)
 *	driver VERSION
 *	fail FUNCTION CODE		that function returns CODE, for every GPU
 *	gpu UUID BUS MIG MODE VIRT NAME	MIG, MODE or VIRT "-": the GPU does not support the query
 *	lost INDEX			every query about that GPU reports that it is lost
 *	process INDEX KIND PID		KIND: compute, graphics or mps
 *
 * The name of every called function is appended to $FAKE_NVML_LOG. Like the real one, the library must be
 * initialized first, and answers arrays that are too small with the size it needs. It has only the functions below.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define GPUS 8
#define PROCESSES 32
#define FAILURES 16

enum {
	SUCCESS = 0,
	UNINITIALIZED = 1,
	INVALID_ARGUMENT = 2,
	NOT_SUPPORTED = 3,
	INSUFFICIENT_SIZE = 7,
	GPU_IS_LOST = 15,
	UNKNOWN = 999,
};

struct gpu {
	char uuid[96], name[96], mig[8], mode[8], virtualization[8];
	unsigned int bus;
	int lost;
};

struct world {
	char driver[80];
	int init;
	int nr_gpus, nr_processes, nr_failures;
	struct gpu gpus[GPUS];
	struct { int gpu; char kind[16]; unsigned int pid; } processes[PROCESSES];
	struct { char function[64]; int code; } failures[FAILURES];
};

struct pci_info {
	char legacy_id[16];
	unsigned int domain, bus, device, device_id, subsystem_id;
	char id[32];
};

struct process_info {
	unsigned int pid;
	unsigned long long used_bytes;
	unsigned int gpu_instance, compute_instance;
};

static int users;

static void log_call(const char *function)
{
	const char *path = getenv("FAKE_NVML_LOG");
	FILE *log = path ? fopen(path, "a") : NULL;

	if (log) {
		fprintf(log, "%s\n", function);
		fclose(log);
	}
}

static void read_line(struct world *world, const char *line)
{
	struct gpu *gpu = &world->gpus[world->nr_gpus];
	int index;

	if (world->nr_gpus < GPUS &&
	    sscanf(line, "gpu %95s %x %7s %7s %7s %95[^\n]", gpu->uuid, &gpu->bus, gpu->mig, gpu->mode,
		   gpu->virtualization, gpu->name) == 6)
		world->nr_gpus++;
	else if (world->nr_processes < PROCESSES &&
		 sscanf(line, "process %d %15s %u", &world->processes[world->nr_processes].gpu,
			world->processes[world->nr_processes].kind, &world->processes[world->nr_processes].pid) == 3)
		world->nr_processes++;
	else if (world->nr_failures < FAILURES &&
		 sscanf(line, "fail %63s %d", world->failures[world->nr_failures].function,
			&world->failures[world->nr_failures].code) == 2)
		world->nr_failures++;
	else if (sscanf(line, "lost %d", &index) == 1 && index >= 0 && index < GPUS)
		world->gpus[index].lost = 1;
	else if (sscanf(line, "init %d", &world->init) != 1)
		sscanf(line, "driver %79s", world->driver);
}

/* Logs the call, reads the present answers, and returns the error of the call, if any. */
static int begin(const char *function, struct world *world)
{
	const char *path = getenv("FAKE_NVML");
	FILE *file = path ? fopen(path, "r") : NULL;
	char line[512];
	int i;

	log_call(function);
	memset(world, 0, sizeof(*world));
	if (!file)
		return UNKNOWN;
	while (fgets(line, sizeof(line), file))
		read_line(world, line);
	fclose(file);
	for (i = 0; i < world->nr_failures; i++)
		if (!strcmp(world->failures[i].function, function))
			return world->failures[i].code;
	return SUCCESS;
}

/* The same for a query about a GPU. A handle is the GPU's index plus one. */
static int begin_gpu(const char *function, struct world *world, void *handle, struct gpu **gpu)
{
	long index = (long)handle - 1;
	int failure = begin(function, world);

	if (!users)
		return UNINITIALIZED;
	if (failure)
		return failure;
	if (index < 0 || index >= world->nr_gpus)
		return INVALID_ARGUMENT;
	*gpu = &world->gpus[index];
	return (*gpu)->lost ? GPU_IS_LOST : SUCCESS;
}

static int text(const char *from, char *to, unsigned int size)
{
	if (strlen(from) >= size)
		return INSUFFICIENT_SIZE;
	strcpy(to, from);
	return SUCCESS;
}

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
	struct world world;
	int failure = begin(__func__, &world);

	(void)flags;
	if (!failure)
		failure = world.init;
	if (!failure)
		users++;
	return failure;
}

EXPORT int nvmlShutdown(void)
{
	log_call(__func__);
	if (!users)
		return UNINITIALIZED;
	users--;
	return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
	log_call(__func__);
	return code == GPU_IS_LOST ? "GPU is lost" : "the fake says so";
}

EXPORT int nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
	struct world world;
	int failure = begin(__func__, &world);

	return failure ? failure : text(world.driver, version, size);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *count)
{
	struct world world;
	int failure = begin(__func__, &world);

	*count = world.nr_gpus;
	return users ? failure : UNINITIALIZED;
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
	struct world world;
	struct gpu *gpu;

	*handle = (void *)(long)(index + 1);
	return begin_gpu(__func__, &world, *handle, &gpu);
}

EXPORT int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int size)
{
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(__func__, &world, handle, &gpu);

	return failure ? failure : text(gpu->uuid, uuid, size);
}

EXPORT int nvmlDeviceGetName(void *handle, char *name, unsigned int size)
{
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(__func__, &world, handle, &gpu);

	return failure ? failure : text(gpu->name, name, size);
}

EXPORT int nvmlDeviceGetPciInfo_v3(void *handle, struct pci_info *info)
{
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(__func__, &world, handle, &gpu);

	if (failure)
		return failure;
	memset(info, 0, sizeof(*info));
	info->bus = gpu->bus;
	return SUCCESS;
}

static int number(const char *text, unsigned long long *value)
{
	if (!strcmp(text, "-"))
		return NOT_SUPPORTED;
	*value = strtoull(text, NULL, 0);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetMigMode(void *handle, unsigned int *current, unsigned int *pending)
{
	unsigned long long value;
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(__func__, &world, handle, &gpu);

	if (!failure)
		failure = number(gpu->mig, &value);
	if (failure)
		return failure;
	*current = value & 1;
	*pending = value >> 1 & 1;
	return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeMode(void *handle, unsigned int *mode)
{
	unsigned long long value;
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(__func__, &world, handle, &gpu);

	if (!failure)
		failure = number(gpu->mode, &value);
	if (!failure)
		*mode = value;
	return failure;
}

EXPORT int nvmlDeviceGetVirtualizationMode(void *handle, unsigned int *mode)
{
	unsigned long long value;
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(__func__, &world, handle, &gpu);

	if (!failure)
		failure = number(gpu->virtualization, &value);
	if (!failure)
		*mode = value;
	return failure;
}

static int processes(const char *function, void *handle, const char *kind, unsigned int *count,
		     struct process_info *infos)
{
	unsigned int size = *count, found = 0;
	struct world world;
	struct gpu *gpu;
	int failure = begin_gpu(function, &world, handle, &gpu);
	int i;

	if (failure)
		return failure;
	for (i = 0; i < world.nr_processes; i++) {
		if (world.processes[i].gpu != (long)handle - 1 || strcmp(world.processes[i].kind, kind))
			continue;
		if (found < size)
			infos[found] = (struct process_info){ world.processes[i].pid, ~0ull, ~0u, ~0u };
		found++;
	}
	*count = found;
	return found > size ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned int *count, struct process_info *infos)
{
	return processes(__func__, handle, "compute", count, infos);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned int *count, struct process_info *infos)
{
	return processes(__func__, handle, "graphics", count, infos);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned int *count, struct process_info *infos)
{
	return processes(__func__, handle, "mps", count, infos);
}

/* Functions that nobody may call. They succeed, and the log shows the call. */
#define SETTER(name) EXPORT int name(void) { log_call(__func__); return SUCCESS; }

SETTER(nvmlDeviceClearAccountingPids)
SETTER(nvmlDeviceCreateGpuInstance)
SETTER(nvmlDeviceModifyDrainState)
SETTER(nvmlDeviceRemoveGpu_v2)
SETTER(nvmlDeviceResetApplicationsClocks)
SETTER(nvmlDeviceResetGpuLockedClocks)
SETTER(nvmlDeviceResetMemoryLockedClocks)
SETTER(nvmlDeviceSetAPIRestriction)
SETTER(nvmlDeviceSetAccountingMode)
SETTER(nvmlDeviceSetApplicationsClocks)
SETTER(nvmlDeviceSetComputeMode)
SETTER(nvmlDeviceSetEccMode)
SETTER(nvmlDeviceSetGpuLockedClocks)
SETTER(nvmlDeviceSetMemoryLimits_v1)
SETTER(nvmlDeviceSetMemoryLockedClocks)
SETTER(nvmlDeviceSetMigMode)
SETTER(nvmlDeviceSetPersistenceMode)
SETTER(nvmlDeviceSetPowerManagementLimit)
SETTER(nvmlDeviceSetVgpuSchedulerState)
SETTER(nvmlDeviceSetVgpuSchedulerState_v2)
SETTER(nvmlDeviceSetVirtualizationMode)
