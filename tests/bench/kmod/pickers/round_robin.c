// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Plain round robin: the entity whose last run ended first is next, whatever its
 * weight and lag.  Replaces vgpu_queue_pick() of queue.c.
 */
#include "internal.h"

/* A queue gives an entity a new number when it stops running. */
static struct vgpu_node *first_stopped(struct vgpu_node *node)
{
	struct vgpu_node *found = node, *other;

	if (!node)
		return NULL;
	other = first_stopped(node->left);
	if (other && other->seq < found->seq)
		found = other;
	other = first_stopped(node->right);
	if (other && other->seq < found->seq)
		found = other;
	return found;
}

struct vgpu_entity *vgpu_queue_pick(const struct vgpu_queue *queue)
{
	struct vgpu_node *node = first_stopped(queue->ready);

	return node ? container_of(node, struct vgpu_entity, node) : NULL;
}
