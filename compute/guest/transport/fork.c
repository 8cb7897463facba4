// SPDX-License-Identifier: Apache-2.0
/*
 * Locks over a fork.  A copy of the process has the forking thread alone: a lock that
 * another thread held would stay locked there for ever, and what it guards half changed.
 * So the forking thread takes these locks before the fork.  The other threads hold them
 * for moments only, and never two of them.
 */
#include "guest/transport/connection.h"

#define LOCKS 16

static pthread_mutex_t *locks[LOCKS];
static unsigned int count;

static void before_fork(void)
{
	for (unsigned int i = 0; i < count; i++)
		pthread_mutex_lock(locks[i]);
}

static void after_fork_here(void)
{
	for (unsigned int i = count; i-- > 0;)
		pthread_mutex_unlock(locks[i]);
}

static void after_fork_in_copy(void)
{
	for (unsigned int i = 0; i < count; i++)
		pthread_mutex_init(locks[i], NULL);
}

void vgpu_keep_over_fork(pthread_mutex_t *lock)
{
	if (!count)
		pthread_atfork(before_fork, after_fork_here, after_fork_in_copy);
	if (count < LOCKS)
		locks[count++] = lock;
}
