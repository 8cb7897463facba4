/* SPDX-License-Identifier: GPL-2.0 */
/* The kernel's lists, each operation of which checks what it joins or cuts. */
#ifndef KFUZZ_LIST_H
#define KFUZZ_LIST_H

struct list_head { struct list_head *next, *prev; };
struct llist_node { struct llist_node *next; };
struct llist_head { struct llist_node *first; };

#define LIST_HEAD_INIT(name) { &(name), &(name) }
#define LIST_HEAD(name) struct list_head name = LIST_HEAD_INIT(name)
#define LLIST_HEAD(name) struct llist_head name = { NULL }
#define list_entry(p, type, member) container_of(p, type, member)
#define list_first_entry(head, type, member) \
	({ REQUIRE(!list_empty(head)); list_entry((head)->next, type, member); })
#define list_first_entry_or_null(head, type, member) \
	(list_empty(head) ? NULL : list_entry((head)->next, type, member))
#define list_for_each_entry(p, head, member) \
	for (p = list_entry((head)->next, __typeof__(*p), member); &p->member != (head); \
	     p = list_entry(p->member.next, __typeof__(*p), member))
#define list_for_each_entry_safe(p, n, head, member) \
	for (p = list_entry((head)->next, __typeof__(*p), member), \
	     n = list_entry(p->member.next, __typeof__(*p), member); &p->member != (head); \
	     p = n, n = list_entry(n->member.next, __typeof__(*n), member))
#define llist_for_each_entry_safe(p, n, first, member) \
	for (struct llist_node *at_ = (first), *next_; \
	     at_ && (next_ = at_->next, p = container_of(at_, __typeof__(*p), member), n = p); \
	     at_ = next_)

static inline void INIT_LIST_HEAD(struct list_head *head) { head->next = head->prev = head; }
static inline bool list_empty(const struct list_head *head) { return head->next == head; }
static inline bool list_is_singular(const struct list_head *head)
{
	return !list_empty(head) && head->next == head->prev;
}

static inline void list_link(struct list_head *node, struct list_head *prev,
			     struct list_head *next)
{
	REQUIRE(prev->next == next && next->prev == prev);
	node->prev = prev;
	node->next = next;
	prev->next = node;
	next->prev = node;
}

static inline void list_add_tail(struct list_head *node, struct list_head *head)
{
	list_link(node, head->prev, head);
}

static inline void list_add(struct list_head *node, struct list_head *head)
{
	list_link(node, head, head->next);
}

static inline void list_unlink(struct list_head *node)
{
	REQUIRE(node->prev->next == node && node->next->prev == node);
	node->prev->next = node->next;
	node->next->prev = node->prev;
}

static inline void list_del(struct list_head *node)
{
	list_unlink(node);
	node->next = node->prev = NULL;
}

static inline void list_del_init(struct list_head *node)
{
	list_unlink(node);
	INIT_LIST_HEAD(node);
}

static inline void list_move_tail(struct list_head *node, struct list_head *head)
{
	list_unlink(node);
	list_add_tail(node, head);
}

static inline void list_splice_init(struct list_head *from, struct list_head *to)
{
	if (list_empty(from))
		return;
	from->next->prev = to;
	from->prev->next = to->next;
	to->next->prev = from->prev;
	to->next = from->next;
	INIT_LIST_HEAD(from);
}

static inline void list_splice_tail_init(struct list_head *from, struct list_head *to)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	from->prev->next = to;
	to->prev->next = from->next;
	to->prev = from->prev;
	INIT_LIST_HEAD(from);
}

static inline bool llist_add(struct llist_node *node, struct llist_head *head)
{
	node->next = head->first;
	head->first = node;
	return !node->next;
}

static inline struct llist_node *llist_del_all(struct llist_head *head)
{
	struct llist_node *first = head->first;

	head->first = NULL;
	return first;
}

#endif /* KFUZZ_LIST_H */
