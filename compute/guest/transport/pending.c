// SPDX-License-Identifier: Apache-2.0
/*
 * Numbers of calls.  The low bits of a number are an index into a table.  The other bits
 * count how often the entry was used, so that a late reply cannot match another call's
 * record.
 */
#include "guest/transport/connection.h"

#include <sys/mman.h>

#define PLACE_BITS 20
#define PLACES (1u << PLACE_BITS)

struct place {
	struct vgpu_pending *pending;	/* NULL if the place is free */
	uint64_t number;
	uint32_t next_free;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct place *places;	/* reserved at once; pages are allocated on use */
static uint32_t first_free;	/* 0: none; place 0 is not used */
static uint32_t used = 1;

uint64_t vgpu_expect(struct vgpu_pending *pending)
{
	uint64_t number = 0;
	uint32_t at = 0;

	pthread_mutex_lock(&lock);
	if (!places) {
		void *memory = mmap(NULL, PLACES * sizeof(*places), PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

		places = memory == MAP_FAILED ? NULL : memory;
	}
	if (places && first_free) {
		at = first_free;
		first_free = places[at].next_free;
	} else if (places && used < PLACES) {
		at = used++;
	}
	if (at) {
		number = places[at].number + PLACES;
		number = (number & ~(uint64_t)(PLACES - 1)) | at;
		places[at].number = number;
		places[at].pending = pending;
	}
	pthread_mutex_unlock(&lock);
	return number;
}

static void give_back(uint32_t at)
{
	pthread_mutex_lock(&lock);
	places[at].next_free = first_free;
	first_free = at;
	pthread_mutex_unlock(&lock);
}

/* Returns the record with this number, or NULL. */
static struct vgpu_pending *find(uint64_t number)
{
	uint32_t at = (uint32_t)(number % PLACES);
	struct vgpu_pending *pending = NULL;

	pthread_mutex_lock(&lock);
	if (places && at && at < used && places[at].number == number)
		pending = places[at].pending;
	pthread_mutex_unlock(&lock);
	return pending;
}

bool vgpu_pending_reply(const struct vgpu_message *message, uint32_t bytes)
{
	struct vgpu_pending *pending = message->call ? find(message->call) : NULL;
	uint32_t at = (uint32_t)(message->call % PLACES);

	if (!pending)
		return false;
	/*
	 * No other thread frees the place, because replies are handled under the receiving
	 * lock.
	 */
	if (pending->reply(pending, message, bytes)) {
		places[at].pending = NULL;
		give_back(at);
	}
	return true;
}

void vgpu_pending_lose(void)
{
	uint32_t end;

	pthread_mutex_lock(&lock);
	end = used;
	pthread_mutex_unlock(&lock);
	for (uint32_t at = 1; at < end; at++) {
		struct vgpu_pending *pending = places[at].pending;

		if (pending) {
			places[at].pending = NULL;
			pending->reply(pending, NULL, 0);
			give_back(at);
		}
	}
}

void vgpu_pending_start(void)
{
	vgpu_keep_over_fork(&lock);
}
