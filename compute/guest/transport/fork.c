// SPDX-License-Identifier: Apache-2.0
/*
 * Locks over a fork.  A forked copy has only the forking thread.  A lock that another
 * thread held would stay locked there for ever, and the data that it guards could be
 * half changed.  So the forking thread takes these locks before the fork.  Other threads
 * hold them only for moments, and never two at a time.
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
