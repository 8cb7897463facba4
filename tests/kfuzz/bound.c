// SPDX-License-Identifier: GPL-2.0
/*
 * Executors of an engine that lends, and their children. Each executor has one thread that
 * operates, one that interferes and one that listens; a few threads act for the children.
 * Mostly they all follow uapi/vgpu_exec.h, and sometimes they do anything. They run beside the
 * VMMs, and switch wherever a kernel could.
 */
#include "bound.h"

#include "slices.h"

#include "engine/binding.h"
#include "engine/child.h"
#include "engine/engine.h"
#include "control/executor.h"

#define EXECUTORS 4
#define CHILDREN 12
#define ACTORS 3
#define THREADS (3 * EXECUTORS + ACTORS)

struct bound_counts bound_counts;

struct executor {
	struct file *file;
	struct pid pid;
	const struct vgpu_binding *binding;
	struct vgpu_device *device;	/* while it is bound */
	unsigned int slice;
	u64 moves;		/* slices_moves when it was bound */
	bool knows_moves;	/* there was no move meanwhile */
	bool moved;		/* it knows that its slice has another tenant */
	u32 opened, closed;	/* windows: reported to it and not handled yet */
	struct vgpu_exec_event gate;
	u64 used_ns, used_at_ns;	/* processor time of its children */
};

/* The files and mappings that a child has at present. */
struct child {
	struct executor *executor;	/* NULL: no such child */
	u32 window;
	u64 serial;
	struct file *memory, *lease, *stream;
	struct vm_area_struct *of_memory, *of_lease, *of_stream;
	u64 reads;
};

struct thread {
	struct task_struct *task;
	void (*act)(struct thread *thread);
	struct executor *executor;
	bool parked;
	struct file *reads;	/* the file whose news it waits for */
	const struct child *child;
	u64 serial, read_before;
	bool knows_wake;
	u32 wake;
};

static struct executor executors[EXECUTORS];
static struct child children[CHILDREN];
static struct thread threads[THREADS];
static unsigned int calls;
static u64 serials;

static const struct file_operations *ops(void) { return kfuzz_misc->fops; }

bool bound_is_quiet(void) { return !calls && sim_work_is_done(); }

/* ---- calls, with memory of user space that exists or not */

static long call(struct file *file, unsigned int command, void *argument, size_t bytes)
{
	size_t there = sim_one_in(64) ? sim_below(bytes) : bytes;
	u8 *user = malloc(bytes);
	long ret;

	REQUIRE(user);
	memcpy(user, argument, bytes);
	get_file(file);
	calls++;
	sim_user(user, there);
	ret = ops()->unlocked_ioctl(file, command, (unsigned long)user);
	sim_user(NULL, 0);
	fput(file);
	calls--;
	memcpy(argument, user, bytes);
	free(user);
	REQUIRE(ret <= 0 && ret > -4096);
	if (there < bytes)
		REQUIRE(ret);
	return ret;
}

static void close_file(struct file **file)
{
	struct file *closed = *file;

	*file = NULL;
	if (!closed)
		return;
	calls++;
	fput(closed);
	calls--;
}

static void unmap(struct vm_area_struct **vma)
{
	struct vm_area_struct *gone = *vma;

	*vma = NULL;
	if (gone)
		sim_unmap(gone);
}

/* ---- children */

static const struct vgpu_lease_page *lease_of(const struct child *child)
{
	return child->of_lease ? page_address(child->of_lease->page) : NULL;
}

/* Threads that wait for a file of a process belong to that process. */
static void interrupt_readers(const struct file *file)
{
	for (int i = 0; i < THREADS; i++)
		if (threads[i].reads == file)
			send_sig(SIGKILL, threads[i].task, 1);
}

static void child_dies(struct child *child)
{
	if (child->stream)
		interrupt_readers(child->stream);
	unmap(&child->of_memory);
	unmap(&child->of_lease);
	unmap(&child->of_stream);
	close_file(&child->memory);
	close_file(&child->lease);
	close_file(&child->stream);
	child->executor = NULL;
}

static bool is_child_of(const struct child *child, const struct executor *executor, u32 window)
{
	return child->executor == executor &&
	       (window == VGPU_WINDOWS_MAX || child->window == window);
}

static void children_die(struct executor *executor, u32 window)
{
	for (int i = 0; i < CHILDREN; i++)
		if (is_child_of(&children[i], executor, window))
			child_dies(&children[i]);
}

/* Map one of its files, as intended or in a way that nobody expects. */
static struct vm_area_struct *map(struct file *file, u64 bytes)
{
	u64 wanted = sim_one_in(8) ? PAGE_SIZE * sim_below(4) : bytes;
	u64 offset = sim_one_in(16) ? PAGE_SIZE : 0;
	unsigned long flags = sim_one_in(16) ? 0 : VM_SHARED | VM_MAYSHARE;
	struct vm_area_struct *vma;
	int ret;

	if (!wanted)
		return NULL;
	vma = sim_map_begin(file, offset, wanted, flags);
	ret = file->f_op->mmap(file, vma);
	if (bytes == PAGE_SIZE)
		REQUIRE(ret == (wanted != bytes || offset || !flags ? -EINVAL : 0) ||
			(ret == -ENOMEM && sim_has_failed));
	if (!ret)
		return vma;
	sim_unmap(vma);
	return NULL;
}

static void child_begins(struct executor *executor, const struct vgpu_exec_window *window)
{
	struct child *child = NULL, new = {
		.executor = executor, .window = window->window, .serial = ++serials,
		.memory = sim_take_fd(window->memory),
		.lease = sim_take_fd(window->lease),
		.stream = sim_take_fd(window->stream),
	};

	for (int i = 0; i < CHILDREN && !child; i++)
		if (!children[i].executor)
			child = &children[i];
	if (sim_below(8)) {
		new.of_lease = map(new.lease, PAGE_SIZE);
		new.of_stream = map(new.stream, PAGE_SIZE);
	}
	if (child && !child->executor)
		*child = new;
	else
		child_dies(&new);
}

static void child_maps(struct child *child)
{
	struct vm_area_struct **place, *vma;
	struct file *file;
	u64 serial = child->serial, bytes = PAGE_SIZE;

	switch (sim_below(3)) {
	case 0: place = &child->of_memory; file = child->memory; bytes *= 4; break;
	case 1: place = &child->of_lease; file = child->lease; break;
	default: place = &child->of_stream; file = child->stream;
	}
	unmap(place);
	if (!file)
		return;
	get_file(file);
	vma = file == child->memory ? sim_map_begin(file, 0, bytes, VM_SHARED | VM_MAYSHARE) :
				      map(file, bytes);
	if (vma && child->executor && child->serial == serial && !*place)
		*place = vma;
	else if (vma)
		sim_unmap(vma);
	fput(file);
}

static void child_writes_memory(const struct child *child)
{
	struct file *file = child->memory;

	if (!file && child->of_memory)
		file = child->of_memory->vm_file;
	if (!file)
		return;
	/* A child that still has the page cannot harm the next process that gets it. */
	REQUIRE(!slices_is_free(file_inode(file)));
	file_inode(file)->written[sim_below(KFUZZ_PARTS)] = true;
}

static void child_writes_page(const struct child *child)
{
	const struct vgpu_lease_page *lease = lease_of(child);
	struct vgpu_stream_page *page;
	u64 number = lease ? lease->lease >> VGPU_LEASE_STATE_BITS : 0;

	if (!child->of_stream)
		return;
	page = page_address(child->of_stream->page);
	if (sim_one_in(16)) {
		for (size_t i = 0; i < sizeof(*page) / sizeof(u64); i++)
			((u64 *)page)[i] = sim_random() >> sim_below(64);
		return;
	}
	page->state = (sim_one_in(16) ? sim_random() : number) << 1 | sim_below(2);
	if (!(page->state & VGPU_STREAM_BUSY))
		page->dry_since_ns = ktime_get_ns();
	else if (page->dry_since_ns && page->dry_since_ns < sim_now_ns)
		page->idle_ns += sim_now_ns - page->dry_since_ns;
}

/* Follows uapi/vgpu_lease_page.h. */
static bool is_sensible(const struct vgpu_stream_request *request)
{
	switch (request->op) {
	case VGPU_STREAM_READY:
		return !request->flags && !request->reserved;
	case VGPU_STREAM_YIELD:
		return !(request->flags & ~7u) && !request->reserved;
	case VGPU_STREAM_RING:
		return !request->flags && !request->lease && !request->kernel_id &&
		       !request->reserved && !request->hint_ns;
	default:
		return false;
	}
}

static void child_sends(const struct child *child, const struct vgpu_stream_request *request)
{
	size_t bytes = sim_one_in(32) ? sim_below(2 * sizeof(*request)) : sizeof(*request);
	size_t there = sim_one_in(64) ? sim_below(bytes + 1) : bytes;
	struct file *file = child->stream;
	const struct vgpu_child *is = file->private_data;
	u8 *user = calloc(1, max(bytes, sizeof(*request)));
	ssize_t done;
	bool ended;

	REQUIRE(user);
	memcpy(user, request, sizeof(*request));
	get_file(file);
	calls++;
	/*
	 * Act like a child that has asked very often. This makes no choice, which would change the
	 * meaning of the rest of the input.
	 */
	if (!(sim_now_ns % 32))
		atomic64_set(&is->device->requests_paid_ns, sim_now_ns);
	sim_user(user, there);
	done = file->f_op->write(file, (char *)user, bytes, NULL);
	sim_user(NULL, 0);
	ended = is->ended;
	fput(file);
	calls--;
	free(user);
	if (bytes != sizeof(*request))
		REQUIRE(done == -EINVAL);
	else if (there < bytes)
		REQUIRE(done == -EFAULT);
	else if (done == -EAGAIN || done == -ERESTARTSYS)
		bound_counts.held_up++;
	else if (!ended)
		REQUIRE(done == (is_sensible(request) ? (ssize_t)sizeof(*request) : -EINVAL));
	else
		/* Events after its end are not read any more. */
		REQUIRE(done == -ENODEV || done == sizeof(*request) ||
			(done == -EINVAL && !is_sensible(request)));
	bound_counts.asked += done > 0;
	bound_counts.nonsense += done == -EINVAL;
}

static void child_asks(const struct child *child)
{
	const struct vgpu_lease_page *lease = lease_of(child);
	struct vgpu_stream_request request = { .op = VGPU_STREAM_READY };
	u64 word = lease ? lease->lease : 0;

	if ((word & VGPU_LEASE_STATE_MASK) != VGPU_LEASE_NONE || sim_one_in(8))
		request = (struct vgpu_stream_request){ .op = VGPU_STREAM_YIELD,
							.lease = word >> VGPU_LEASE_STATE_BITS,
							.flags = sim_below(8) };
	if (sim_one_in(4)) {
		request.kernel_id = sim_below(4);
		request.hint_ns = sim_below(NSEC_PER_MSEC);
	}
	bound_counts.recalled += (word & VGPU_LEASE_STATE_MASK) == VGPU_LEASE_RECALLED;
	bound_counts.expired += (word & VGPU_LEASE_STATE_MASK) == VGPU_LEASE_EXPIRED;
	child_sends(child, &request);
}

static void child_says_anything(const struct child *child)
{
	struct vgpu_stream_request request;

	for (size_t i = 0; i < sizeof(request); i++)
		((u8 *)&request)[i] = sim_one_in(2) ? 0 : sim_random();
	request.op = sim_below(5);
	child_sends(child, &request);
}

static void child_rings(const struct child *child)
{
	child_sends(child, &(struct vgpu_stream_request){ .op = VGPU_STREAM_RING });
}

static bool has_ended(const struct file *stream)
{
	const struct vgpu_child *is = stream->private_data;

	return is->ended;
}

static bool has_signals(const struct file *stream)
{
	const struct vgpu_child *is = stream->private_data;

	return atomic64_read(&is->signals);
}

static void child_reads(struct thread *thread, struct child *child)
{
	const struct vgpu_lease_page *lease = lease_of(child);
	bool blocks = sim_below(2);
	struct file *file = get_file(child->stream);
	u64 signals = 0, serial = child->serial;
	ssize_t done;

	file->f_flags = O_RDWR | (blocks ? 0 : O_NONBLOCK);
	thread->child = child;
	thread->serial = serial;
	thread->read_before = child->reads;
	thread->knows_wake = lease;
	thread->wake = lease ? lease->wake : 0;
	thread->reads = file;
	sim_user(&signals, sizeof(signals));
	done = file->f_op->read(file, (char *)&signals, sim_one_in(64) ? 4 : sizeof(signals), NULL);
	sim_user(NULL, 0);
	thread->reads = NULL;
	REQUIRE(done == -EAGAIN || done == -EBUSY || done == -ERESTARTSYS || done == -EINVAL || !done ||
		(done == sizeof(signals) && signals));
	if (!done)
		REQUIRE(has_ended(file));
	if (done >= 0 && child->serial == serial)
		child->reads++;
	bound_counts.blocked += blocks && done >= 0;
	bound_counts.news += done > 0;
	flush_signals(current);
	fput(file);
}

static void child_acts(struct thread *thread)
{
	struct child *child = &children[sim_below(CHILDREN)];

	for (int i = 0; i < CHILDREN && !child->executor; i++)
		child = &children[i];
	if (!child->executor)
		return;
	if (!child->stream) {
		child_dies(child);
		return;
	}
	switch (sim_below(24)) {
	case 0: case 1: case 2: case 3: child_maps(child); break;
	case 4: case 5: child_writes_memory(child); break;
	case 6: case 7: case 8: child_writes_page(child); break;
	case 9: case 10: case 11: child_rings(child); break;
	case 12: child_says_anything(child); break;
	case 13: case 14: case 15: child_reads(thread, child); break;
	case 16:
		if (sim_one_in(2))
			close_file(&child->memory);
		else
			close_file(&child->lease);
		break;
	case 17:
		if (sim_one_in(4))
			child_dies(child);
		break;
	default:
		child_writes_page(child);
		if (child->executor && child->stream)
			child_asks(child);
	}
}

/* ---- executors */

static void unbind(struct executor *executor)
{
	struct vgpu_device *device = executor->device;

	executor->binding = NULL;
	executor->device = NULL;
	executor->opened = executor->closed = 0;
	executor->gate = (struct vgpu_exec_event){};
	executor->moved = false;
	if (device)
		put_device(&device->vdev.device);
}

/* Its children die with it, or go on for some time. */
static void executor_dies(struct executor *executor)
{
	if (sim_below(4))
		children_die(executor, VGPU_WINDOWS_MAX);
	interrupt_readers(executor->file);
	unbind(executor);
	close_file(&executor->file);
	if (executor->pid.killed)
		bound_counts.killed++;
	executor->pid.killed = false;
}

static void executor_begins(struct executor *executor)
{
	struct file *file;

	if (executor->pid.refs > 1)	/* something of the last executor is left */
		return;
	file = sim_open(ops());
	if (IS_ERR(file)) {
		REQUIRE(sim_has_failed && PTR_ERR(file) == -ENOMEM);
		return;
	}
	executor->file = file;
}

/* The serial of a window's opening that a new executor must learn, 0 for none. */
static u64 opening(const struct vgpu_window *window)
{
	if (window->state == VGPU_WINDOW_OPEN ||
	    (window->state == VGPU_WINDOW_CLOSING && window->given))
		return window->opened;
	return 0;
}

/*
 * No thread has read yet, and the executor gets an event for each window that was open all the
 * time.
 */
static void check_told(struct file *file, const struct vgpu_device *device)
{
	const struct vgpu_window *windows = device->windows.window;
	u64 before[VGPU_WINDOWS_MAX];
	__poll_t events;

	for (u32 i = 0; i < VGPU_WINDOWS_MAX; i++)
		before[i] = opening(&windows[i]);
	events = file->f_op->poll(file, NULL);
	for (u32 i = 0; i < VGPU_WINDOWS_MAX; i++)
		if (before[i] && opening(&windows[i]) == before[i])
			REQUIRE(events & (EPOLLIN | EPOLLHUP));
}

static void bind(struct executor *executor)
{
	struct vgpu_exec_bind bind = { .uuid = "00000000-0000-0000-0000-000000000000" };
	struct vgpu_executor *mine = executor->file->private_data;
	unsigned int slice = sim_below(SLICES);
	bool was_bound = mine->binding, good = true;
	u64 moves = slices_moves[slice];
	long ret;

	if (slice)
		bind.uuid[UUID_STRING_LEN - slice] = '1';
	if (sim_one_in(16)) {
		bind.uuid[sim_below(sizeof(bind.uuid))] = sim_random();
		good = false;
	}
	if (sim_one_in(32))
		bind.reserved = sim_random() | 1;
	if (bind.reserved)
		good = false;
	ret = call(executor->file, VGPU_EXEC_BIND, &bind, sizeof(bind));
	REQUIRE(!ret || ret == -EFAULT || ret == -ENOENT || ret == -EBUSY || ret == -ENODEV ||
		(ret == -EINVAL && !good) || (ret == -ENOMEM && sim_has_failed));
	if (bind.reserved)
		REQUIRE(ret == -EFAULT || ret == -EINVAL);
	bound_counts.refused += !!ret;
	/* An executor without an answer may be bound nevertheless. */
	if (was_bound || !mine->binding || executor->binding)
		return;
	REQUIRE(ret != -EBUSY && ret != -EINVAL);
	executor->device = mine->binding->device;
	get_device(&executor->device->vdev.device);
	executor->slice = slice;
	executor->moves = good ? moves : U64_MAX;
	executor->knows_moves = good && moves == slices_moves[slice];
	check_told(executor->file, executor->device);
	executor->binding = mine->binding;
	if (ret)
		return;
	REQUIRE(bind.windows == VGPU_WINDOWS_MAX && bind.window_bytes == VGPU_WINDOW_BYTES &&
		bind.memory_bytes == executor->device->memory_bytes);
	bound_counts.bound++;
}

/* One of its own windows in @mask, or any window. */
static u32 some_window(u32 mask)
{
	u32 number = sim_below(VGPU_WINDOWS_MAX);

	if (sim_one_in(24))
		return sim_one_in(8) ? sim_random() : number % 4;
	for (u32 i = 0; i < VGPU_WINDOWS_MAX; i++, number = (number + 1) % VGPU_WINDOWS_MAX)
		if (mask & BIT(number))
			return number;
	return sim_below(4);
}

static void serve(struct executor *executor, struct file *file)
{
	struct vgpu_exec_window window = { .window = some_window(executor->opened) };
	u32 number = window.window;
	bool bound = executor->binding;
	long ret;

	if (sim_one_in(64))
		window.reserved = 1;
	ret = call(file, VGPU_EXEC_WINDOW, &window, sizeof(window));
	if (number < VGPU_WINDOWS_MAX)
		executor->opened &= ~BIT(number);
	REQUIRE(!ret || ret == -EFAULT || ret == -ENXIO || ret == -ENODEV ||
		(ret == -ENOTTY && !bound) ||
		(ret == -EINVAL && (number >= VGPU_WINDOWS_MAX || window.reserved)) ||
		((ret == -ENOMEM || ret == -EMFILE) && sim_has_failed));
	if (ret)
		return;
	REQUIRE(number < VGPU_WINDOWS_MAX && window.window == number);
	bound_counts.windows++;
	child_begins(executor, &window);
}

/* The memory that a window's child got, if it got any. */
static const struct inode *given(const struct executor *executor, u32 window)
{
	const struct file *file = NULL;

	if (executor->device && window < VGPU_WINDOWS_MAX)
		file = executor->device->windows.window[window].given;
	return file ? file_inode(file) : NULL;
}

/* Does any child that began before this one still have @memory? */
static bool has_memory(const struct inode *memory, u64 serial)
{
	for (int i = 0; memory && i < CHILDREN; i++) {
		const struct child *child = &children[i];

		if (!child->executor || child->serial > serial)
			continue;
		if ((child->memory && file_inode(child->memory) == memory) ||
		    (child->of_memory && file_inode(child->of_memory->vm_file) == memory))
			return true;
	}
	return false;
}

static void end_child(struct executor *executor, struct file *file, unsigned int command)
{
	u32 mask = command == VGPU_EXEC_CLOSED ? executor->closed : executor->opened;
	struct vgpu_exec_child child = { .window = some_window(mask) };
	u64 serial = serials;
	u32 number = child.window;
	const struct inode *memory = given(executor, number);
	bool bound = executor->binding;
	long ret;

	if (sim_one_in(64))
		child.reserved = 1;
	if (number < VGPU_WINDOWS_MAX) {
		executor->closed &= ~BIT(number);
		executor->opened &= ~BIT(number);
		if (sim_below(8))
			children_die(executor, number);
	}
	ret = call(file, command, &child, sizeof(child));
	REQUIRE(!ret || ret == -EFAULT || ret == -ENXIO || ret == -ENODEV || ret == -EBUSY ||
		(ret == -ENOTTY && !bound) ||
		(ret == -EINVAL && (number >= VGPU_WINDOWS_MAX || child.reserved)));
	if (ret == -EBUSY) {
		bound_counts.busy++;
		executor->closed |= command == VGPU_EXEC_CLOSED ? BIT(number) : 0;
	}
	if (ret)
		return;
	REQUIRE(number < VGPU_WINDOWS_MAX && !child.reserved);
	REQUIRE(!has_memory(memory, serial));
	bound_counts.lost += command == VGPU_EXEC_LOST;
	bound_counts.closed += command == VGPU_EXEC_CLOSED;
}

static void ring_guest(struct file *file)
{
	struct vgpu_exec_child child = { .window = some_window(0xff) };
	long ret;

	if (sim_one_in(64))
		child.reserved = 1;
	ret = call(file, VGPU_EXEC_RING, &child, sizeof(child));
	REQUIRE(!ret || ret == -EFAULT || ret == -ENXIO || ret == -ENODEV || ret == -ENOTTY ||
		(ret == -EINVAL && (child.window >= VGPU_WINDOWS_MAX || child.reserved)));
}

static void answer_gate(struct executor *executor)
{
	struct vgpu_exec_gate gate = { .sequence = executor->gate.sequence,
				       .done = !sim_one_in(24) };
	bool good;
	long ret;

	executor->used_ns += sim_below(8 * (sim_now_ns - executor->used_at_ns) + 1);
	executor->used_at_ns = sim_now_ns;
	gate.processor_ns = executor->used_ns;
	if (sim_one_in(16))
		gate.processor_ns = sim_one_in(4) ? sim_random() : 0;
	if (sim_one_in(24))
		gate.sequence = sim_random();
	if (sim_one_in(64))
		gate.done = 2;
	if (sim_one_in(64))
		gate.reserved = 1;
	good = gate.done <= 1 && !gate.reserved;
	executor->gate.kind = 0;
	ret = call(executor->file, VGPU_EXEC_GATE, &gate, sizeof(gate));
	REQUIRE(!ret || ret == -EFAULT || ret == -ENODEV || ret == -ENOTTY || (ret == -EINVAL && !good));
	if (!good)
		REQUIRE(ret);
	bound_counts.gates += !ret;
}

/* Read an event, if there is one or as soon as there is one. */
static void listen(struct thread *thread, bool blocks)
{
	struct executor *executor = thread->executor;
	const struct vgpu_binding *binding = executor->binding;
	struct file *file = get_file(executor->file);
	struct vgpu_exec_event event;
	ssize_t done;

	file->f_flags = O_RDWR | (blocks ? 0 : O_NONBLOCK);
	thread->reads = file;
	sim_user(&event, sizeof(event));
	done = file->f_op->read(file, (char *)&event, sizeof(event), NULL);
	sim_user(NULL, 0);
	thread->reads = NULL;
	REQUIRE(done == -EAGAIN || done == -ERESTARTSYS || done == -ENODEV || done == sizeof(event));
	bound_counts.ended += done == -ENODEV;
	bound_counts.blocked += blocks && done > 0;
	if (done > 0 && executor->binding == binding) {
		REQUIRE(event.kind >= VGPU_EXEC_WINDOW_OPENED && event.kind <= VGPU_EXEC_GATE_OPEN &&
			event.window < VGPU_WINDOWS_MAX);
		if (event.kind >= VGPU_EXEC_GATE_CLOSE) {
			REQUIRE(event.sequence >= executor->gate.sequence && !event.window);
			executor->gate = event;
		} else if (event.kind == VGPU_EXEC_WINDOW_OPENED) {
			executor->opened |= BIT(event.window);
		} else {
			executor->closed |= BIT(event.window);
			executor->opened &= ~BIT(event.window);
		}
		bound_counts.events++;
	}
	flush_signals(current);
	close_file(&file);
}

static void listener_acts(struct thread *thread)
{
	if (thread->executor->binding && thread->executor->file)
		listen(thread, sim_below(3));
}

static void look(struct executor *executor)
{
	struct file *file = get_file(executor->file);
	__poll_t events = file->f_op->poll(file, NULL);

	REQUIRE(!(events & ~(EPOLLIN | EPOLLRDNORM | EPOLLHUP)));
	fput(file);
}

static void operator_acts(struct thread *thread)
{
	struct executor *executor = thread->executor;
	struct file *file = executor->file;

	if (!file) {
		executor_begins(executor);
		return;
	}
	if ((executor->pid.killed && sim_below(4)) || sim_one_in(200) ||
	    (executor->binding && executor->binding->ended && sim_one_in(3))) {
		executor_dies(executor);
		return;
	}
	if (!executor->binding && sim_below(8)) {
		bind(executor);
		return;
	}
	if (executor->gate.kind && sim_below(8)) {
		answer_gate(executor);
		return;
	}
	switch (sim_below(16)) {
	case 0: bind(executor); break;
	case 1: case 2: case 3: case 4: case 5: serve(executor, file); break;
	case 6: case 7: case 8: end_child(executor, file, VGPU_EXEC_CLOSED); break;
	case 9: if (sim_one_in(2)) end_child(executor, file, VGPU_EXEC_LOST); break;
	case 10: case 11: ring_guest(file); break;
	case 12: if (sim_one_in(4)) answer_gate(executor); break;
	case 13:
		REQUIRE(file->f_op->unlocked_ioctl(file, sim_random(), 0) == (executor->binding && executor->binding->ended ? -ENODEV : -ENOTTY));
		break;
	default: look(executor);
	}
}

/* Makes random claims about windows, even while the operating thread does. */
static void meddler_acts(struct thread *thread)
{
	struct executor *executor = thread->executor;
	struct file *file;

	if (!executor->binding)
		return;
	file = get_file(executor->file);
	switch (sim_below(8)) {
	case 0: case 1: case 2: case 3: serve(executor, file); break;
	case 4: case 5:
		if (executor->opened || sim_one_in(8))
			end_child(executor, file, VGPU_EXEC_LOST);
		break;
	case 6: end_child(executor, file, VGPU_EXEC_CLOSED); break;
	default: ring_guest(file);
	}
	close_file(&file);
}

/* ---- their threads: each does one thing whenever it gets a turn */

static int run(void *data)
{
	struct thread *thread = data;

	if (thread->executor)
		current->tgid = &thread->executor->pid;
	while (!kthread_should_stop()) {
		thread->act(thread);
		set_current_state(TASK_IDLE);
		thread->parked = true;
		if (!kthread_should_stop())
			schedule();
		thread->parked = false;
	}
	return 0;
}

static void start(struct thread *thread, void (*act)(struct thread *thread),
		  struct executor *executor)
{
	*thread = (struct thread){ .act = act, .executor = executor };
	thread->task = kthread_run(run, thread, "thread");
	REQUIRE(!IS_ERR(thread->task));
}

void bound_begin(void)
{
	serials = 0;
	memset(executors, 0, sizeof(executors));
	memset(children, 0, sizeof(children));
	for (int i = 0; i < EXECUTORS; i++) {
		executors[i].pid.refs = 1;
		start(&threads[3 * i], operator_acts, &executors[i]);
		start(&threads[3 * i + 1], listener_acts, &executors[i]);
		start(&threads[3 * i + 2], meddler_acts, &executors[i]);
	}
	for (int i = 3 * EXECUTORS; i < THREADS; i++)
		start(&threads[i], child_acts, NULL);
}

/* The interfering thread acts while the operating thread does. */
static void wake(struct thread *thread)
{
	wake_up_process(thread->task);
	if (thread->act == meddler_acts && thread[-2].parked)
		wake_up_process(thread[-2].task);
}

void bound_step(void)
{
	for (u64 turns = 1 + sim_below(4); turns; turns--) {
		struct thread *thread = &threads[sim_below(THREADS)];

		if (thread->parked)
			wake(thread);
		else if (thread->reads && sim_one_in(16))
			send_sig(SIGKILL, thread->task, 1);
		sim_maybe_preempt();
	}
}

void bound_end(void)
{
	for (int i = 0; i < THREADS; i++) {
		send_sig(SIGKILL, threads[i].task, 1);
		kthread_stop(threads[i].task);
	}
	REQUIRE(!calls);
	for (int i = 0; i < CHILDREN; i++)
		if (children[i].executor)
			child_dies(&children[i]);
	for (int i = 0; i < EXECUTORS; i++)
		if (executors[i].file)
			executor_dies(&executors[i]);
	sim_finish_work();
	for (int i = 0; i < EXECUTORS; i++)
		REQUIRE(executors[i].pid.refs == 1);
}

/* ---- what holds */

/* Is a thread awake that is about to read the file? */
static bool is_being_read(const struct file *file)
{
	for (int i = 0; i < THREADS; i++)
		if (threads[i].reads == file && !sim_is_asleep(threads[i].task))
			return true;
	return false;
}

static bool has_news(const struct thread *thread, struct file *file)
{
	if (thread->executor)
		return file->f_op->poll(file, NULL) & (EPOLLIN | EPOLLHUP);
	return has_signals(file) || has_ended(file);
}

/* A waiting thread is woken by the event it waits for. */
static void check_reader(const struct thread *thread)
{
	const struct child *child = thread->child;
	struct file *file = thread->reads;

	if (!file || !sim_is_asleep(thread->task))
		return;
	if (has_news(thread, file))
		REQUIRE(!sim_is_asleep(thread->task));	/* the news has only just come */
	if (thread->reads != file || !sim_is_asleep(thread->task))
		return;
	/* The thread is asleep, and no other thread has read instead. */
	if (!thread->executor && child->serial == thread->serial && child->executor &&
	    child->reads == thread->read_before && thread->knows_wake && lease_of(child) &&
	    !is_being_read(thread->reads))
		REQUIRE(lease_of(child)->wake == thread->wake);
}

/*
 * An executor serves its slice until the slice goes or gets another tenant, or until it is killed.
 */
static void check_executor(struct executor *executor)
{
	bool killed = executor->pid.killed;
	bool over;

	if (!executor->binding)
		return;
	over = executor->device->revoked ||
	       (executor->knows_moves && executor->moves != slices_moves[executor->slice]);
	if (!executor->binding->ended) {
		REQUIRE(!over && !(killed && sim_work_is_done()));
		return;
	}
	if (executor->device->revoked || killed || executor->moved)
		return;
	REQUIRE(executor->moves != slices_moves[executor->slice]);
	executor->moved = true;
	bound_counts.moved++;
}

void bound_look(void)
{
	for (int i = 0; i < THREADS; i++)
		check_reader(&threads[i]);
	for (int i = 0; i < EXECUTORS; i++)
		check_executor(&executors[i]);
}

void bound_check_leases(const struct vgpu_lease_page *said)
{
	for (int i = 0; i < CHILDREN; i++) {
		const struct vgpu_lease_page *lease = lease_of(&children[i]);

		if (lease && lease != said)
			REQUIRE((lease->lease & VGPU_LEASE_STATE_MASK) == VGPU_LEASE_NONE);
	}
}

void bound_before_bell(struct vgpu_device *device, u32 number, struct bound_bell *bell)
{
	bell->child = -1;
	if (number >= VGPU_WINDOWS_MAX || !device->windows.window[number].child)
		return;
	for (int i = 0; i < CHILDREN; i++) {
		const struct child *child = &children[i];

		if (!child->executor || !child->stream ||
		    child->stream->private_data != device->windows.window[number].child)
			continue;
		bell->child = i;
		bell->reads = child->serial << 32 | child->reads;
	}
}

void bound_after_bell(const struct bound_bell *bell)
{
	const struct child *child = &children[max(bell->child, 0)];

	if (bell->child < 0 || !child->executor || !child->stream ||
	    bell->reads != (child->serial << 32 | child->reads) || is_being_read(child->stream))
		return;
	REQUIRE(has_signals(child->stream) || has_ended(child->stream));
}
