/* SPDX-License-Identifier: GPL-2.0 */
/* Files, anonymous memory, pages and their mappings, simulated by files.c. */
#ifndef KFUZZ_FILES_H
#define KFUZZ_FILES_H

#include <fcntl.h>

struct file;
struct vm_area_struct;
typedef struct { int unused; } poll_table;
typedef unsigned int __poll_t;
#define poll_wait(file, head, table) ((void)(head))
#define vgpu_poll_waits(table) false
#define waitqueue_active(head) ((void)(head), false)
#define EPOLLIN 1u
#define EPOLLPRI 2u
#define EPOLLOUT 4u
#define EPOLLERR 8u
#define EPOLLHUP 16u
#define EPOLLRDNORM 64u
#define EPOLLWRNORM 256u

/* ---- memory without a name: its contents, in parts */

#define KFUZZ_PARTS 8

struct shmem_inode_info { unsigned int seals; };
struct inode {
	u64 bytes;
	unsigned int files;	/* open files of this memory */
	struct shmem_inode_info shmem;
	int i_uid, i_gid;
	unsigned int i_mode;
	bool written[KFUZZ_PARTS];
};

#define GLOBAL_ROOT_UID 0
#define GLOBAL_ROOT_GID 0
#define SHMEM_I(inode) (&(inode)->shmem)
struct file *vgpu_shmem_file_setup(const char *name, loff_t bytes);
void shmem_truncate_range(struct inode *inode, loff_t start, loff_t last);

/* ---- files */

struct path {
	union {
		struct inode *inode;
		struct inode *dentry;	/* held by each file, and by nothing else */
	};
};

#define d_count(dentry) ((dentry)->files)

struct file_operations {
	struct module *owner;
	ssize_t (*read)(struct file *file, char *buffer, size_t count, loff_t *position);
	ssize_t (*write)(struct file *file, const char *buffer, size_t count, loff_t *position);
	int (*open)(struct inode *inode, struct file *file);
	int (*release)(struct inode *inode, struct file *file);
	long (*unlocked_ioctl)(struct file *file, unsigned int command, unsigned long arg);
	long (*compat_ioctl)(struct file *file, unsigned int command, unsigned long arg);
	__poll_t (*poll)(struct file *file, poll_table *wait);
	int (*mmap)(struct file *file, struct vm_area_struct *vma);
};

struct file {
	const struct file_operations *f_op;
	void *private_data;
	struct inode *f_inode;
	struct path f_path;
	unsigned int f_flags;
	int refs;
};

#define file_inode(file) ((file)->f_inode)
#define file_count(file) ((long)(file)->refs)
#define current_cred() NULL
struct file *anon_inode_getfile(const char *name, const struct file_operations *ops, void *data,
				int flags);
struct file *dentry_open(const struct path *path, int flags, const void *who);
struct file *get_file(struct file *file);
void fput(struct file *file);
static inline int stream_open(struct inode *inode, struct file *file) { return 0; }

struct miscdevice {
	int minor;
	const char *name;
	const struct file_operations *fops;
	unsigned int mode;
};

/* The one device file of the module. */
extern struct miscdevice *kfuzz_misc;
#define MISC_DYNAMIC_MINOR 255
#define misc_register(misc) (kfuzz_misc = (misc), 0)
#define misc_deregister(misc) ((void)(misc))
#define compat_ptr_ioctl NULL

/* All processes share one table. */
int get_unused_fd_flags(unsigned int flags);
void put_unused_fd(unsigned int fd);
void fd_install(unsigned int fd, struct file *file);

/* ---- pages and mappings */

#define PAGE_SHIFT 12
#define PAGE_SIZE 4096ul
#define VM_SHARED 8ul
#define VM_MAYSHARE 128ul

struct page { int refs; u8 *data; };
struct page *alloc_page(gfp_t flags);
void get_page(struct page *page);
void put_page(struct page *page);
#define page_address(page) ((void *)(page)->data)

struct vm_area_struct {
	unsigned long vm_start, vm_end, vm_pgoff, vm_flags;
	struct file *vm_file;
	struct page *page;	/* by vm_insert_page() */
};

int vm_insert_page(struct vm_area_struct *vma, unsigned long at, struct page *page);
void vma_set_file(struct vm_area_struct *vma, struct file *file);
int vgpu_call_mmap(struct file *file, struct vm_area_struct *vma);

#endif /* KFUZZ_FILES_H */
