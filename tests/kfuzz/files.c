// SPDX-License-Identifier: GPL-2.0
/* Files, descriptors, pages and mappings. Each counts its users, and none may be left. */
#include "sim.h"

#define DESCRIPTORS 256
#define RESERVED ((struct file *)1)	/* a number without a file yet */

struct miscdevice *kfuzz_misc;

static struct file *descriptors[DESCRIPTORS];
static u64 files, pages, mappings;

/* ---- files */

static struct file *file_alloc(const struct file_operations *ops, void *data, int flags)
{
	struct file *file = kfuzz_alloc(sizeof(*file), GFP_KERNEL);

	if (!file)
		return ERR_PTR(-ENOMEM);
	*file = (struct file){ .f_op = ops, .private_data = data, .f_flags = flags, .refs = 1 };
	files++;
	return file;
}

struct file *anon_inode_getfile(const char *name, const struct file_operations *ops, void *data,
				int flags)
{
	(void)name;
	return file_alloc(ops, data, flags);
}

struct file *sim_open(const struct file_operations *ops)
{
	struct file *file = file_alloc(ops, NULL, O_RDWR);
	int ret = IS_ERR(file) ? PTR_ERR(file) : ops->open(NULL, file);

	if (!ret || IS_ERR(file))
		return file;
	files--;
	kfree(file);
	return ERR_PTR(ret);
}

struct file *get_file(struct file *file)
{
	REQUIRE(file->refs > 0);
	file->refs++;
	return file;
}

void fput(struct file *file)
{
	REQUIRE(file->refs > 0);
	if (--file->refs)
		return;
	file->f_op->release(file->f_inode, file);
	files--;
	kfree(file);
}

/* ---- memory without a name */

static int memory_mmap(struct file *file, struct vm_area_struct *vma)
{
	u64 bytes = vma->vm_end - vma->vm_start;

	REQUIRE(vma->vm_file == file);
	REQUIRE((vma->vm_pgoff << PAGE_SHIFT) + bytes <= file->f_inode->bytes);
	return sim_fails() ? -ENOMEM : 0;
}

static int memory_release(struct inode *inode, struct file *file)
{
	(void)file;
	REQUIRE(inode->files > 0);
	if (!--inode->files)
		kfree(inode);
	return 0;
}

static const struct file_operations memory_ops = {
	.mmap = memory_mmap,
	.release = memory_release,
};

static struct file *memory_open(struct inode *inode, int flags)
{
	struct file *file = file_alloc(&memory_ops, NULL, flags);

	if (IS_ERR(file))
		return file;
	file->f_inode = inode;
	file->f_path.inode = inode;
	inode->files++;
	return file;
}

struct file *vgpu_shmem_file_setup(const char *name, loff_t bytes)
{
	struct inode *inode = kfuzz_alloc(sizeof(*inode), GFP_KERNEL);
	struct file *file;

	(void)name;
	if (!inode)
		return ERR_PTR(-ENOMEM);
	inode->bytes = bytes;
	file = memory_open(inode, O_RDWR);
	if (IS_ERR(file))
		kfree(inode);
	return file;
}

struct file *dentry_open(const struct path *path, int flags, const void *who)
{
	(void)who;
	might_sleep();
	return memory_open(path->inode, flags);
}

/* Only whole pages, and only whole simulated parts, are removed. */
void shmem_truncate_range(struct inode *inode, loff_t start, loff_t last)
{
	u64 part = inode->bytes / KFUZZ_PARTS;

	might_sleep();
	sim_maybe_preempt();
	REQUIRE(start >= 0 && start <= last && !(start % PAGE_SIZE) && !((last + 1) % PAGE_SIZE));
	for (u64 i = 0; i < KFUZZ_PARTS; i++)
		if (i * part >= (u64)start && (i + 1) * part <= (u64)last + 1)
			inode->written[i] = false;
}

/* ---- descriptors */

int get_unused_fd_flags(unsigned int flags)
{
	REQUIRE(flags == O_CLOEXEC);
	if (sim_fails())
		return -EMFILE;
	for (int i = 0; i < DESCRIPTORS; i++) {
		if (descriptors[i])
			continue;
		descriptors[i] = RESERVED;
		return i;
	}
	return -EMFILE;
}

void put_unused_fd(unsigned int fd)
{
	REQUIRE(fd < DESCRIPTORS && descriptors[fd] == RESERVED);
	descriptors[fd] = NULL;
}

void fd_install(unsigned int fd, struct file *file)
{
	REQUIRE(fd < DESCRIPTORS && descriptors[fd] == RESERVED);
	descriptors[fd] = file;
}

struct file *sim_take_fd(unsigned int fd)
{
	struct file *file;

	REQUIRE(fd < DESCRIPTORS && descriptors[fd] && descriptors[fd] != RESERVED);
	file = descriptors[fd];
	descriptors[fd] = NULL;
	return file;
}

/* ---- pages and mappings */

struct page *alloc_page(gfp_t flags)
{
	struct page *page = kfuzz_alloc(sizeof(*page), flags);

	if (!page)
		return NULL;
	page->data = malloc(PAGE_SIZE);
	REQUIRE(page->data);
	memset(page->data, flags & __GFP_ZERO ? 0 : 0xa5, PAGE_SIZE);
	page->refs = 1;
	pages++;
	return page;
}

void get_page(struct page *page)
{
	REQUIRE(page->refs > 0);
	page->refs++;
}

void put_page(struct page *page)
{
	REQUIRE(page->refs > 0);
	if (--page->refs)
		return;
	free(page->data);
	pages--;
	kfree(page);
}

int vm_insert_page(struct vm_area_struct *vma, unsigned long at, struct page *page)
{
	might_sleep();
	REQUIRE(at == vma->vm_start && !vma->page);
	if (sim_fails())
		return -ENOMEM;
	get_page(page);
	vma->page = page;
	return 0;
}

void vma_set_file(struct vm_area_struct *vma, struct file *file)
{
	struct file *before = vma->vm_file;

	vma->vm_file = get_file(file);
	fput(before);
}

int vgpu_call_mmap(struct file *file, struct vm_area_struct *vma)
{
	return file->f_op->mmap(file, vma);
}

/* The state in which mmap() calls the file's operation. */
struct vm_area_struct *sim_map_begin(struct file *file, u64 offset, u64 bytes,
				     unsigned long flags)
{
	struct vm_area_struct *vma = calloc(1, sizeof(*vma));

	REQUIRE(vma);
	*vma = (struct vm_area_struct){ .vm_start = 1ul << 30, .vm_end = (1ul << 30) + bytes,
					.vm_pgoff = offset >> PAGE_SHIFT, .vm_flags = flags,
					.vm_file = get_file(file) };
	mappings++;
	return vma;
}

void sim_unmap(struct vm_area_struct *vma)
{
	if (vma->page)
		put_page(vma->page);
	fput(vma->vm_file);
	free(vma);
	mappings--;
}

u64 sim_files_left(void)
{
	u64 left = files + pages + mappings;

	for (unsigned int i = 0; i < DESCRIPTORS; i++)
		left += !!descriptors[i];
	return left;
}
