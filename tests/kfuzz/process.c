// SPDX-License-Identifier: GPL-2.0
#include "process.h"

#include "executor.h"
#include "guest.h"

#define FILES 3
#define BYTES_MAX 9000

struct process_counts process_counts;

static struct file files[FILES];
static u64 numbers[FILES];	/* of the grants taken last */
static bool ended[FILES];

/* What was there to do for an executor when it looked last. */
static struct news {
	u64 grant;	/* another number for a revoked one; 0 for none */
	bool channel;
	bool ended;
	u64 woken;	/* how often who waits has been */
} news[FILES];

static const struct file_operations *ops(void) { return kfuzz_misc->fops; }

static bool is_open(const struct file *file) { return file->private_data; }

static void open_file(struct file *file)
{
	*file = (struct file){ .f_flags = O_NONBLOCK };
	ended[file - files] = false;
	numbers[file - files] = 0;
	news[file - files] = (struct news){};
	if (ops()->open(NULL, file)) {
		REQUIRE(sim_failures);
		file->private_data = NULL;
	}
}

static void close_file(struct file *file)
{
	ops()->release(NULL, file);
	file->private_data = NULL;
}

static void note_end(const struct file *file, long ret)
{
	if (ret != -ENODEV)
		return;
	process_counts.ended++;
	ended[file - files] = true;
}

/* What does nothing takes no lock that others need. */
static void check_cost(const struct sim_counts *before)
{
	REQUIRE(sim_counts.spinlocks == before->spinlocks);
	process_counts.for_nothing++;
}

/* A structure that is user space's, or not all of it. */
static long call(struct file *file, unsigned int command, void *argument, size_t bytes)
{
	size_t there = sim_one_in(32) ? sim_below(bytes) : bytes;
	u8 *user = malloc(bytes);
	long ret;

	REQUIRE(user);
	memcpy(user, argument, bytes);
	sim_user(user, there);
	ret = ops()->unlocked_ioctl(file, command, (unsigned long)user);
	sim_user(NULL, 0);
	memcpy(argument, user, bytes);
	free(user);
	REQUIRE(ret <= 0 && ret > -4096);
	if (there < bytes)
		REQUIRE(ret);
	note_end(file, ret);
	return ret;
}

static void attach(struct file *file)
{
	struct vgpu_exec_attach attach = { .uuid = "00000000-0000-0000-0000-000000000000" };
	bool attached = ((struct vgpu_executor *)file->private_data)->device;
	struct sim_counts before = sim_counts;
	long ret;

	if (sim_one_in(16))
		attach.uuid[sim_below(sizeof(attach.uuid))] = sim_random();
	current->policy = sim_below(SCHED_DEADLINE + 2);
	current->rt_priority = sim_below(MAX_RT_PRIO);
	ret = call(file, VGPU_EXEC_ATTACH, &attach, sizeof(attach));
	REQUIRE(!ret || ret == -EFAULT || ret == -EINVAL || ret == -ENOENT || ret == -EBUSY ||
		ret == -ENODEV || (ret == -ENOMEM && sim_failures));
	if (!ret || ret == -EFAULT)
		REQUIRE(sim_told_nothing());
	else
		REQUIRE(sim_told(ret == -EINVAL || ret == -ENOENT ? "uuid" :
				 attached ? "file" : ret == -ENODEV ? "slice" :
				 ret == -ENOMEM ? "thread" : "executor"));
	process_counts.attached += !ret;
	if (attached)
		check_cost(&before);
}

static void take(struct file *file)
{
	struct sim_counts before = sim_counts;
	struct vgpu_exec_grant grant;
	long ret = call(file, VGPU_EXEC_TAKE, &grant, sizeof(grant));

	REQUIRE(!ret || ret == -EFAULT || ret == -EAGAIN || ret == -ENODEV || ret == -ENOTCONN);
	if (ret || grant.number == numbers[file - files])
		check_cost(&before);
	if (ret)
		return;
	REQUIRE(!(grant.flags & ~VGPU_EXEC_REVOKED) && grant.number >= numbers[file - files]);
	numbers[file - files] = grant.number;
	process_counts.granted++;
}

static void complete(struct file *file)
{
	struct vgpu_exec_complete complete = { .number = numbers[file - files],
					       .status = sim_one_in(16) ? sim_random() : sim_below(2),
					       .result = sim_random() };
	const struct vgpu_executor *executor = file->private_data;
	struct sim_counts before = sim_counts;
	bool had_ended = executor->ended;
	bool valid;
	long ret;

	if (sim_one_in(32))
		complete.number = sim_random();
	if (sim_one_in(32))
		complete.reserved = sim_random();
	valid = complete.status <= VGPU_ITEM_FAILED && !complete.reserved;
	ret = call(file, VGPU_EXEC_COMPLETE, &complete, sizeof(complete));
	REQUIRE(!ret || ret == -EFAULT || ret == -EINVAL || ret == -ECANCELED || ret == -ENODEV ||
		ret == -ENOTCONN);
	if (!valid)
		REQUIRE(ret);
	if (ret == -EINVAL)
		REQUIRE(sim_told(complete.reserved ? "reserved" :
				 complete.status > VGPU_ITEM_FAILED ? "status" : "number"));
	else
		REQUIRE(sim_told_nothing());
	/* It may end once it has been seen to owe an answer, which only the lock can tell. */
	if (ret == -ENODEV && !had_ended)
		REQUIRE(sim_counts.spinlocks <= before.spinlocks + 1);
	else if (ret && ret != -ECANCELED)
		check_cost(&before);
	process_counts.completed += !ret;
	process_counts.revoked += ret == -ECANCELED;
}

static void check_bytes(const struct file *file, ssize_t done, size_t bytes,
			const struct sim_counts *before)
{
	REQUIRE(done == -EAGAIN || done == -ENODEV || done == -ENOTCONN || done == -EFAULT ||
		(done > 0 && (size_t)done <= bytes) || !bytes);
	if (done <= 0)
		check_cost(before);
	note_end(file, done);
}

static void read_bytes(struct file *file)
{
	size_t bytes = sim_below(BYTES_MAX);
	struct sim_counts before = sim_counts;
	u8 *user = malloc(bytes ?: 1);
	ssize_t done;

	sim_user(user, sim_one_in(32) ? 0 : bytes);
	done = ops()->read(file, (char *)user, bytes, NULL);
	sim_user(NULL, 0);
	check_bytes(file, done, bytes, &before);
	if (done > 0)
		guest_executor_read(user, done);
	free(user);
}

static void write_bytes(struct file *file)
{
	size_t bytes = sim_below(BYTES_MAX);
	struct sim_counts before = sim_counts;
	u8 *user = malloc(bytes ?: 1);
	ssize_t done;

	for (size_t i = 0; i < bytes; i++)
		user[i] = sim_random();
	sim_user(user, sim_one_in(32) ? 0 : bytes);
	/* The worker may be faster than this function's return. */
	guest_executor_writes(user, bytes);
	done = ops()->write(file, (const char *)user, bytes, NULL);
	sim_user(NULL, 0);
	check_bytes(file, done, bytes, &before);
	guest_executor_wrote(bytes, done < 0 ? 0 : done);
	free(user);
}

/* Who waits is woken for whatever is new, now or soon. */
static void check_told(const struct file *file)
{
	const struct vgpu_executor *executor = file->private_data;
	struct news *last = &news[file - files];
	struct news now = {
		.channel = executor->channel,
		.ended = executor->ended,
		.woken = executor->wait.woken,
	};

	if (executor->state == VGPU_GRANT_OFFERED || executor->state == VGPU_GRANT_REVOKED)
		now.grant = 2 * executor->grant.number + (executor->state == VGPU_GRANT_REVOKED);
	if ((now.grant && now.grant != last->grant) || now.channel != last->channel ||
	    now.ended != last->ended) {
		REQUIRE(now.woken != last->woken ||
			(executor->pending && sim_will_run(executor->notifier)));
		process_counts.told++;
	}
	*last = now;
}

static void look(struct file *file)
{
	struct sim_counts before = sim_counts;
	__poll_t events = ops()->poll(file, NULL);

	check_cost(&before);
	check_told(file);
	REQUIRE(!(events & ~(EPOLLIN | EPOLLRDNORM | EPOLLOUT | EPOLLWRNORM | EPOLLPRI | EPOLLHUP)));
	if (events & EPOLLPRI)
		take(file);
}

void process_step(void)
{
	struct file *file = &files[sim_below(sim_one_in(8) ? FILES : 1)];

	if (!is_open(file)) {
		open_file(file);
		if (is_open(file))
			attach(file);
		return;
	}
	if (ended[file - files] && sim_one_in(3)) {
		close_file(file);
		return;
	}
	switch (sim_below(32)) {
	case 0: if (sim_one_in(4)) close_file(file); break;
	case 1: case 2: attach(file); break;
	case 3: case 4: take(file); break;
	case 5: case 6: case 7: complete(file); break;
	case 8: case 9: case 10: read_bytes(file); break;
	case 11: case 12: case 13:
		do
			write_bytes(file);
		while (sim_below(4));
		break;
	case 14:
		REQUIRE(ops()->unlocked_ioctl(file, sim_random(), 0) == -ENOTTY);
		break;
	case 15: sim_sleep(sim_below(3 * NSEC_PER_MSEC)); break;
	default:
		look(file);
		if (sim_below(4))
			complete(file);
	}
}

void process_end(void)
{
	for (int i = 0; i < FILES; i++)
		if (is_open(&files[i]))
			close_file(&files[i]);
}
