// SPDX-License-Identifier: Apache-2.0
/*
 * Plays module and supervisor to vgpu-executor's windows.c.  A line of standard input is a
 * message of one of them; the messages to the other one are printed:
 *
 *	opened N | closed N | started SEQUENCE | failed SEQUENCE | exited CHILD | died
 *	| kill | at NS | used N | missing N | deaf | held N | retry
 *
 * `used` leaves data in the next window N.  `missing` makes the module report that window N is
 * not open.  `deaf` makes the supervisor receive no more messages.  `held` makes a process hold the
 * memory of windows the next N times that the module is told of one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <syslog.h>
#include <unistd.h>

#include "executor/header.h"
#include "executor/log.h"
#include "executor/slice/slice.h"

static struct slice slice = { .window_count = 3, .window_bytes = VGPU_WINDOW_BYTES_MIN };
static int memory[VGPU_WINDOWS_MAX];
static bool used[VGPU_WINDOWS_MAX], missing[VGPU_WINDOWS_MAX], deaf;
static uint64_t sequence = 100;
static unsigned long long held;

void slice_note(struct slice *unused, int level, const char *format, ...)
{
	(void)unused;
	(void)level;
	(void)format;
}

void vgpu_log(int level, const char *format, ...)
{
	va_list list;

	(void)level;
	va_start(list, format);
	vprintf(format, list);
	va_end(list);
	putchar('\n');
}

int module_files(struct slice *unused, unsigned int number, struct vgpu_exec_window *files)
{
	(void)unused;
	if (missing[number])
		return ENXIO;
	if (memory[number] > 0)
		close(memory[number]);
	memory[number] = memfd_create("window", 0);
	if (memory[number] < 0 || ftruncate(memory[number], VGPU_WINDOW_BYTES_MIN) ||
	    (used[number] && pwrite(memory[number], "x", 1, 100) != 1))
		exit(2);
	*files = (struct vgpu_exec_window){
		.memory = dup(memory[number]), .lease = open("/dev/null", O_RDONLY),
		.stream = open("/dev/null", O_RDONLY),
	};
	return 0;
}

static void print_window(const char *what, unsigned int number)
{
	struct vgpu_window header = { 0 };

	if (memory[number] > 0 && pread(memory[number], &header, sizeof(header), 0) != sizeof(header))
		exit(2);
	printf("%s %u", what, number);
	if (header.child == VGPU_CHILD_LOST)
		printf(": %s", header.reason);
	putchar('\n');
}

static bool is_held(void)
{
	if (!held)
		return false;
	held--;
	puts("held");
	return true;
}

bool module_lost(struct slice *unused, unsigned int number)
{
	(void)unused;
	if (is_held())
		return false;
	print_window("lost", number);
	return true;
}

bool module_closed(struct slice *unused, unsigned int number)
{
	(void)unused;
	if (is_held())
		return false;
	printf("closed %u\n", number);
	return true;
}

uint64_t children_start(struct slice *unused, uint64_t child, const struct vgpu_exec_window *files)
{
	uint32_t magic = 0;

	(void)unused;
	if (deaf)
		return 0;
	if (pread(files->memory, &magic, sizeof(magic), 0) != sizeof(magic) || magic != VGPU_WINDOW_MAGIC)
		exit(2);
	printf("start %llu sequence %llu\n", (unsigned long long)child, (unsigned long long)++sequence);
	return sequence;
}

void children_kill(struct slice *unused, uint64_t child, const char *reason)
{
	(void)unused;
	printf("kill %llu: %s\n", (unsigned long long)child, reason);
}

static void print_due(uint64_t due_ns, uint64_t now_ns)
{
	if (due_ns == UINT64_MAX)
		puts("nothing is due");
	else
		printf("due in %llu us\n", (unsigned long long)(due_ns - now_ns) / 1000);
}

static unsigned int count_descriptors(void)
{
	unsigned int count = 0;

	for (int i = 0; i < 256; i++)
		count += fcntl(i, F_GETFD) >= 0;
	for (unsigned int i = 0; i < VGPU_WINDOWS_MAX; i++)
		count -= memory[i] > 0;
	return count;
}

int main(void)
{
	unsigned int before = count_descriptors();
	uint64_t now_ns = 1000000000;
	char word[16], line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	windows_init(&slice, now_ns);
	while (fgets(line, sizeof(line), stdin)) {
		unsigned long long number = 0;

		if (sscanf(line, "%15s %llu", word, &number) < 1)
			continue;
		if (!strcmp(word, "opened"))
			window_opened(&slice, (unsigned int)number, now_ns);
		else if (!strcmp(word, "closed"))
			window_closed(&slice, (unsigned int)number, now_ns);
		else if (!strcmp(word, "started") || !strcmp(word, "failed"))
			window_started(&slice, number, *word == 's', "no namespace", now_ns);
		else if (!strcmp(word, "exited"))
			window_exited(&slice, number, 9, "a reason", now_ns);
		else if (!strcmp(word, "died"))
			windows_lose(&slice, "its supervisor died", now_ns);
		else if (!strcmp(word, "kill"))
			windows_kill(&slice, "the end");
		else if (!strcmp(word, "at"))
			now_ns = number;
		else if (!strcmp(word, "held"))
			held = number;
		else if (!strcmp(word, "retry"))
			print_due(windows_retry(&slice, now_ns), now_ns);
		else if (!strcmp(word, "used"))
			used[number] = true;
		else if (!strcmp(word, "missing"))
			missing[number] = true;
		else if (!strcmp(word, "deaf"))
			deaf = true;
		else if (!strcmp(word, "patience"))
			printf("patience %lld\n", (long long)(windows_patience_ns(&slice) - now_ns));
		else
			return 2;
	}
	printf("%u descriptors\n", count_descriptors() - before);
	return 0;
}
