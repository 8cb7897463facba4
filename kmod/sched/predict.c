// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * Predicts how long a group's kernels take, and how long the gaps after them are,
 * from the items that the group completed.  Each kernel id has two histograms with
 * the same log-linear buckets as run lengths.  A count is one byte; when one is
 * full, all counts of its histogram are halved, so old samples fade.  The table is
 * part of the group, so other groups' items never change its predictions, whatever
 * ids they use.
 */
#include "internal.h"

#define LAST_BUCKET	(VGPU_PREDICT_BUCKETS - 1)
/*
 * A kernel is in one of this many consecutive entries, beginning with the entry
 * that its id hashes to.
 */
#define PROBES		4u
#define COUNT_MAX	255

static u32 place(u32 id, u32 probe)
{
	return ((id * 2654435761u >> 16) + probe) % VGPU_PREDICT_KERNELS;
}

static bool is_at(const struct vgpu_predictor *predictor, u32 at, u32 id)
{
	return predictor->kernels[at].used && predictor->kernels[at].id == id;
}

static const struct vgpu_kernel *find(const struct vgpu_group *group, u32 id)
{
	u32 i;

	for (i = 0; i < PROBES; i++)
		if (is_at(&group->predictor, place(id, i), id))
			return &group->predictor.kernels[place(id, i)];
	return NULL;
}

static u32 age(const struct vgpu_predictor *predictor, u32 at)
{
	const struct vgpu_kernel *kernel = &predictor->kernels[at];

	return kernel->used ? predictor->records - kernel->used : U32_MAX;
}

/*
 * Return the kernel's entry.  A kernel without an entry gets the least recently
 * used one.
 */
static struct vgpu_kernel *find_or_make(struct vgpu_predictor *predictor, u32 id)
{
	u32 i, at, oldest = place(id, 0);

	if (!++predictor->records)
		predictor->records = 1;
	for (i = 0; i < PROBES; i++) {
		at = place(id, i);
		if (is_at(predictor, at, id))
			break;
		if (age(predictor, at) > age(predictor, oldest))
			oldest = at;
	}
	if (i == PROBES) {
		at = oldest;
		memset(&predictor->kernels[at], 0, sizeof(predictor->kernels[at]));
		predictor->kernels[at].id = id;
	}
	predictor->kernels[at].used = predictor->records;
	return &predictor->kernels[at];
}

static void count(u8 *counts, u64 ns)
{
	u32 bucket = min(vgpu_hist_bucket(ns), LAST_BUCKET);
	u32 i;

	if (counts[bucket] == COUNT_MAX)
		for (i = 0; i < VGPU_PREDICT_BUCKETS; i++)
			counts[i] /= 2;
	counts[bucket]++;
}

static bool has_enough(const u8 *counts)
{
	u32 i, samples = 0;

	for (i = 0; i < VGPU_PREDICT_BUCKETS; i++)
		samples += counts[i];
	return samples >= VGPU_PREDICT_SAMPLES;
}

/* The upper end of a bucket's lengths; the last bucket has none. */
static u64 end_ns(u32 bucket)
{
	return bucket < LAST_BUCKET ? vgpu_hist_bucket_start_ns(bucket + 1) :
				      U64_MAX;
}

void vgpu_predict_learn_duration(struct vgpu_group *group, u32 kernel_id, u64 ns)
{
	count(find_or_make(&group->predictor, kernel_id)->duration, ns);
}

void vgpu_predict_learn_gap(struct vgpu_group *group, u32 kernel_id, u64 ns)
{
	count(find_or_make(&group->predictor, kernel_id)->gap, ns);
}

u64 vgpu_predict_duration_ns(const struct vgpu_group *group,
			     const struct vgpu_item_info *item)
{
	const struct vgpu_kernel *kernel = find(group, item->kernel_id);
	u32 bucket = LAST_BUCKET;

	if (!kernel || !has_enough(kernel->duration))
		return max(group->sched->params.max_chunk_ns, item->hint_ns);
	while (!kernel->duration[bucket])
		bucket--;
	return end_ns(bucket);
}

/* The histogram of gaps after a kernel, NULL if there are too few samples. */
static const u8 *gaps_of(const struct vgpu_group *group, u32 kernel_id)
{
	const struct vgpu_kernel *kernel = find(group, kernel_id);

	return kernel && has_enough(kernel->gap) ? kernel->gap : NULL;
}

u64 vgpu_predict_inversion_ns(const struct vgpu_group *group, u32 kernel_id,
			      u64 elapsed_ns, u64 piece_ns)
{
	const u8 *gaps = gaps_of(group, kernel_id);
	u64 start_ns, left_ns, sum_ns = 0;
	u32 i, samples = 0;

	for (i = 0; gaps && i < VGPU_PREDICT_BUCKETS; i++) {
		if (!gaps[i] || end_ns(i) <= elapsed_ns)
			continue;
		start_ns = vgpu_hist_bucket_start_ns(i);
		left_ns = start_ns > elapsed_ns ? start_ns - elapsed_ns : 0;
		samples += gaps[i];
		if (piece_ns > left_ns)
			sum_ns += gaps[i] * (piece_ns - left_ns);
	}
	if (!samples)
		return U64_MAX;
	return div64_u64(sum_ns + samples - 1, samples);
}

/*
 * The longest piece that, if it begins now, is expected to exceed the rest of the
 * gap by at most @inversion_ns; 0 if too few gaps are known.
 */
u64 vgpu_predict_fill_ns(const struct vgpu_group *group, u32 kernel_id,
			 u64 elapsed_ns, u64 inversion_ns)
{
	const u8 *gaps = gaps_of(group, kernel_id);
	u64 start_ns, left_ns, sum_ns = 0, ns = 0;
	u32 i, over = 0, samples = 0;

	for (i = 0; gaps && i < VGPU_PREDICT_BUCKETS; i++)
		if (end_ns(i) > elapsed_ns)
			samples += gaps[i];
	for (i = 0; samples && i < VGPU_PREDICT_BUCKETS; i++) {
		if (!gaps[i] || end_ns(i) <= elapsed_ns)
			continue;
		start_ns = vgpu_hist_bucket_start_ns(i);
		left_ns = start_ns > elapsed_ns ? start_ns - elapsed_ns : 0;
		if (sum_ns + over * (left_ns - ns) > inversion_ns * samples)
			break;
		sum_ns += over * (left_ns - ns);
		ns = left_ns;
		over += gaps[i];
	}
	return over ? ns + div64_u64(inversion_ns * samples - sum_ns, over) : 0;
}

/* The bounds of the shortest among the gaps that are longer than @elapsed_ns. */
u64 vgpu_predict_gap_ns(const struct vgpu_group *group, u32 kernel_id,
			u64 elapsed_ns, u64 *longest_ns)
{
	const u8 *gaps = gaps_of(group, kernel_id);
	u32 i;

	for (i = 0; gaps && i < VGPU_PREDICT_BUCKETS; i++) {
		*longest_ns = end_ns(i);
		if (gaps[i] && *longest_ns > elapsed_ns)
			return vgpu_hist_bucket_start_ns(i);
	}
	*longest_ns = U64_MAX;
	return 0;
}
