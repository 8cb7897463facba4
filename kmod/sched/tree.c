// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * An AVL tree of intrusive nodes ordered by key (equal keys in order of
 * insertion).  Every node also points to the node with the least (rank, seq) in
 * its subtree.  So one descent finds the earliest deadline among the eligible
 * nodes, like the kernel's pick_eevdf() with its augmented rbtree.  No function
 * recurses.
 */
#include "internal.h"

static int height(const struct vgpu_node *node)
{
	return node ? node->height : 0;
}

static struct vgpu_node *better(struct vgpu_node *a, struct vgpu_node *b)
{
	if (!a || !b)
		return a ? a : b;
	if (a->rank != b->rank)
		return vgpu_before(a->rank, b->rank) ? a : b;
	return vgpu_before(a->seq, b->seq) ? a : b;
}

static void update(struct vgpu_node *node)
{
	node->height = 1 + max(height(node->left), height(node->right));
	node->best = node;
	if (node->left)
		node->best = better(node->left->best, node->best);
	if (node->right)
		node->best = better(node->right->best, node->best);
}

/* Put @new (may be NULL) in the place of @old under its parent. */
static void replace(struct vgpu_node **root, struct vgpu_node *old,
		    struct vgpu_node *new)
{
	struct vgpu_node *parent = old->parent;

	if (!parent)
		*root = new;
	else if (parent->left == old)
		parent->left = new;
	else
		parent->right = new;
	if (new)
		new->parent = parent;
}

/* Both rotations return the node that took the place of @node. */
static struct vgpu_node *rotate_left(struct vgpu_node **root,
				     struct vgpu_node *node)
{
	struct vgpu_node *top = node->right;

	replace(root, node, top);
	node->right = top->left;
	if (node->right)
		node->right->parent = node;
	top->left = node;
	node->parent = top;
	update(node);
	update(top);
	return top;
}

static struct vgpu_node *rotate_right(struct vgpu_node **root,
				      struct vgpu_node *node)
{
	struct vgpu_node *top = node->left;

	replace(root, node, top);
	node->left = top->right;
	if (node->left)
		node->left->parent = node;
	top->right = node;
	node->parent = top;
	update(node);
	update(top);
	return top;
}

/* Restore heights, balance and @best from @node up to the root. */
static void rebalance(struct vgpu_node **root, struct vgpu_node *node)
{
	int tilt;

	for (; node; node = node->parent) {
		tilt = height(node->left) - height(node->right);
		if (tilt > 1) {
			if (height(node->left->left) < height(node->left->right))
				rotate_left(root, node->left);
			node = rotate_right(root, node);
		} else if (tilt < -1) {
			if (height(node->right->right) < height(node->right->left))
				rotate_right(root, node->right);
			node = rotate_left(root, node);
		} else {
			update(node);
		}
	}
}

void vgpu_tree_insert(struct vgpu_node **root, struct vgpu_node *node)
{
	struct vgpu_node *parent = NULL;
	struct vgpu_node **link = root;

	while (*link) {
		parent = *link;
		link = vgpu_before(node->key, parent->key) ? &parent->left :
							     &parent->right;
	}
	node->parent = parent;
	node->left = NULL;
	node->right = NULL;
	*link = node;
	rebalance(root, node);
}

void vgpu_tree_erase(struct vgpu_node **root, struct vgpu_node *node)
{
	struct vgpu_node *heir, *lowest_changed;

	if (node->left && node->right) {
		heir = vgpu_tree_first(node->right);
		lowest_changed = heir;
		if (heir->parent != node) {
			lowest_changed = heir->parent;
			replace(root, heir, heir->right);
			heir->right = node->right;
			heir->right->parent = heir;
		}
		heir->left = node->left;
		heir->left->parent = heir;
	} else {
		heir = node->left ? node->left : node->right;
		lowest_changed = node->parent;
	}
	replace(root, node, heir);
	rebalance(root, lowest_changed);
}

struct vgpu_node *vgpu_tree_first(struct vgpu_node *root)
{
	while (root && root->left)
		root = root->left;
	return root;
}

/* The node with the least (rank, seq) among those whose key is not after @max_key. */
struct vgpu_node *vgpu_tree_best(struct vgpu_node *root, u64 max_key)
{
	struct vgpu_node *best = NULL;

	while (root) {
		if (vgpu_before(max_key, root->key)) {
			root = root->left;
			continue;
		}
		best = better(best, root);
		if (root->left)
			best = better(best, root->left->best);
		root = root->right;
	}
	return best;
}
