// SPDX-License-Identifier: Apache-2.0
#include "executor/fence/books.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "executor/fence/holders.h"
#include "rm_abi.h"

#define DEVICE_MAJOR	195u

/* The kernel assigns a major number to nvidia-uvm when the module is loaded. */
static unsigned int find_managed_major(void)
{
	FILE *devices = fopen("/proc/devices", "re");
	unsigned int major, found = DEVICE_MAJOR;
	char line[128], name[64];

	while (devices && fgets(line, sizeof(line), devices))
		if (sscanf(line, "%u %63s", &major, name) == 2 && !strcmp(name, "nvidia-uvm"))
			found = major;
	if (devices)
		fclose(devices);
	return found;
}

void fence_books_open(struct fence_books *books, const struct vgpu_fence *fence)
{
	books->fence = fence;
	books->managed_major = find_managed_major();
	for (unsigned int i = 0; i < RM_CLIENTS_NATIVE_MAX; i++)
		books->clients[i] = (struct fence_client){ .file = -1, .maker = -1 };
	fence->page->objects.is_native = true;
}

bool fence_is_device(const struct fence_books *books, int file)
{
	struct stat status;

	if (!books)
		return true;
	return !fstat(file, &status) && S_ISCHR(status.st_mode) &&
	       (major(status.st_rdev) == DEVICE_MAJOR || major(status.st_rdev) == books->managed_major);
}

bool fence_enter(struct fence_books *books)
{
	if (!books)
		return true;
	/*
	 * The fence stores @busy and then reads @closing; the supervisor stores @closing and then
	 * reads @busy.  So at least one of them sees the other's store.
	 */
	atomic_store(&books->fence->page->busy, 1);
	if (!atomic_load(&books->fence->page->closing))
		return true;
	atomic_store(&books->fence->page->busy, 0);
	return false;
}

void fence_leave(struct fence_books *books)
{
	if (books)
		atomic_store(&books->fence->page->busy, 0);
}

/* ---- clients */

int fence_keep_file(struct fence_books *books, uint32_t client, int file)
{
	for (unsigned int i = 0; i < RM_CLIENTS_NATIVE_MAX; i++) {
		struct fence_client *place = &books->clients[i];

		if (place->file >= 0)
			continue;
		place->file = fcntl(file, F_DUPFD_CLOEXEC, 0);
		if (place->file < 0)
			return -1;
		place->maker = pidfd_open(books->caller, 0);
		place->handle = client;
		place->lost = false;
		return place->file;
	}
	/* Without the client's file the gate cannot stop the client, so it kills the program. */
	return -1;
}

static void forget_client(struct fence_client *client)
{
	close(client->file);
	if (client->maker >= 0)
		close(client->maker);
	*client = (struct fence_client){ .file = -1, .maker = -1 };
}

/* ---- memory */

static bool add_within(_Atomic uint64_t *used, uint64_t limit, uint64_t bytes)
{
	uint64_t now = atomic_load(used);

	do {
		if (now > limit || bytes > limit - now)
			return false;
	} while (!atomic_compare_exchange_weak(used, &now, now + bytes));
	return true;
}

/* The driver allocates GPU memory in pages of at least this size, which libcuda also requests. */
#define PAGE_BYTES	65536u

static uint64_t round_up(uint64_t bytes)
{
	return bytes > UINT64_MAX - PAGE_BYTES ? UINT64_MAX - PAGE_BYTES + 1 :
						  (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

static bool take(struct fence_books *books, uint64_t bytes)
{
	struct vgpu_fence_quota *quota = books->fence->quota;

	if (books->memory_count == FENCE_MEMORY_MAX ||
	    !add_within(&quota->used_bytes, atomic_load(&quota->limit_bytes), bytes))
		return false;
	atomic_fetch_add(&books->fence->page->memory_bytes, bytes);
	return true;
}

bool fence_take_memory(struct fence_books *books, uint64_t bytes)
{
	if (!books || !bytes || take(books, round_up(bytes)))
		return true;
	/* Memory of a process that has just ended may not be returned yet. */
	fence_reap(books, false);
	return take(books, round_up(bytes));
}

void fence_give_memory(struct fence_books *books, uint64_t bytes)
{
	if (!books)
		return;
	bytes = round_up(bytes);
	atomic_fetch_sub(&books->fence->quota->used_bytes, bytes);
	atomic_fetch_sub(&books->fence->page->memory_bytes, bytes);
}

void fence_note_memory(struct fence_books *books, uint32_t client, uint32_t parent, uint32_t handle,
		       uint64_t bytes)
{
	if (!books || !bytes)
		return;
	books->memory[books->memory_count++] = (struct fence_memory){
		.client = client, .parent = parent, .handle = handle, .bytes = round_up(bytes),
		.tracked = rm_find(&books->fence->page->objects, client, parent),
	};
}

uint64_t fence_memory_of(const struct fence_books *books, uint32_t client, uint32_t handle)
{
	for (uint32_t i = 0; books && i < books->memory_count; i++)
		if (books->memory[i].client == client && books->memory[i].handle == handle)
			return books->memory[i].bytes;
	return 0;
}

void fence_note_freed(struct fence_books *books, uint32_t client, uint32_t handle, bool tracked)
{
	if (!books)
		return;
	for (uint32_t i = 0; i < books->memory_count;) {
		const struct fence_memory *memory = &books->memory[i];
		bool gone = memory->client == client &&
			    (memory->handle == handle || memory->parent == handle || client == handle ||
			     (tracked && memory->tracked && !rm_find(&books->fence->page->objects, client, memory->parent)));

		if (!gone) {
			i++;
			continue;
		}
		fence_give_memory(books, memory->bytes);
		books->memory[i] = books->memory[--books->memory_count];
	}
	for (unsigned int i = 0; i < RM_CLIENTS_NATIVE_MAX && client == handle; i++)
		if (books->clients[i].file >= 0 && books->clients[i].handle == client)
			forget_client(&books->clients[i]);
}

/* ---- processes that end */

static bool has_ended(struct fence_client *client)
{
	struct pollfd maker = { .fd = client->maker, .events = POLLIN };

	if (client->maker >= 0 && poll(&maker, 1, 0) == 1) {
		close(client->maker);
		client->maker = -1;
	}
	return client->maker < 0;
}

/*
 * Closing the fence's own descriptor is not enough, because the file may be in transit from one
 * process to another.  So the client itself is freed, with all its objects.
 */
static void free_client(struct fence_books *books, struct fence_client *client)
{
	struct rm_free release = { .client = client->handle, .object = client->handle, .status = UINT32_MAX };
	uint32_t handle = client->handle;

	if (!fence_enter(books))
		return;
	ioctl(client->file, _IOWR(RM_MAGIC, RM_ESC_FREE, struct rm_free), &release);
	/* Whatever the driver returned, no process can use the client afterwards. */
	rm_forget(&books->fence->page->objects, handle, handle);
	fence_note_freed(books, handle, handle, true);
	fence_leave(books);
}

/*
 * Lists the files to look for: those of clients whose maker has ended, because that process may
 * have passed its file on; with @all, the files of all clients.
 */
static unsigned int list_files(struct fence_books *books, bool all, struct fence_client **clients, int *files)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < RM_CLIENTS_NATIVE_MAX; i++) {
		struct fence_client *client = &books->clients[i];

		if (client->file < 0 || (!has_ended(client) && !all))
			continue;
		clients[count] = client;
		files[count++] = client->file;
	}
	return count;
}

bool fence_reap(struct fence_books *books, bool all)
{
	struct fence_client *clients[RM_CLIENTS_NATIVE_MAX];
	enum fence_held held[RM_CLIENTS_NATIVE_MAX];
	int files[RM_CLIENTS_NATIVE_MAX];
	unsigned int count = list_files(books, all, clients, files);
	bool alone = true;

	if (count)
		fence_find_holders(books->fence, files, count, held);
	for (unsigned int i = 0; i < count; i++) {
		alone = alone && held[i] != FENCE_HELD_OUTSIDE;
		/*
		 * A living maker has either closed the file, for example by execve(), or is passing
		 * it to another process.  In the latter case the next search finds it.
		 */
		if (held[i] == FENCE_HELD_BY_NOBODY && (clients[i]->maker < 0 || clients[i]->lost))
			free_client(books, clients[i]);
		else if (all)
			clients[i]->lost = held[i] == FENCE_HELD_BY_NOBODY;
	}
	return alone;
}
