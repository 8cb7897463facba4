/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes wake each other by a futex in shared memory, as often as asked.
 * Prints "pingpong_us N", the mean round trip: the minimum cost of any answer
 * from another process that has to be woken, on this machine.
 */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct shared {
	_Atomic uint32_t ping;
	_Alignas(64) _Atomic uint32_t pong;
};

static void wake(_Atomic uint32_t *word)
{
	atomic_fetch_add(word, 1);
	syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void wait_beyond(_Atomic uint32_t *word, uint32_t seen)
{
	while (atomic_load(word) == seen)
		syscall(SYS_futex, word, FUTEX_WAIT, seen, NULL, NULL, 0);
}

int main(int count, char **words)
{
	struct shared *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t rounds = count > 1 ? (uint32_t)atoi(words[1]) : 20000;
	struct timespec begun, ended;
	pid_t other;

	if (shared == MAP_FAILED)
		return 1;
	other = fork();
	if (other < 0)
		return 1;
	if (!other) {
		for (uint32_t i = 0; i < rounds; i++) {
			wait_beyond(&shared->ping, i);
			wake(&shared->pong);
		}
		_exit(0);
	}
	clock_gettime(CLOCK_MONOTONIC, &begun);
	for (uint32_t i = 0; i < rounds; i++) {
		wake(&shared->ping);
		wait_beyond(&shared->pong, i);
	}
	clock_gettime(CLOCK_MONOTONIC, &ended);
	waitpid(other, NULL, 0);
	printf("pingpong_us %.3f\n",
	       ((double)(ended.tv_sec - begun.tv_sec) * 1e9 + (double)(ended.tv_nsec - begun.tv_nsec)) / 1e3 / rounds);
	return 0;
}
