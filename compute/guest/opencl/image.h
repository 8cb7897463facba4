/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and checks of images and rectangles. */
#ifndef VGPU_GUEST_IMAGE_H
#define VGPU_GUEST_IMAGE_H

#include "guest/opencl/memory.h"

/* Returns the bytes of a pixel, or 0 for an unknown format. */
size_t image_element_bytes(const cl_image_format *format);

/* Is the region, in pixels, inside the image? */
bool image_region_fits(cl_mem image, const size_t *origin, const size_t *region);

/*
 * Replaces pitches of 0 by those of a dense copy.  Returns false if pitches are too small for the
 * region.
 */
bool image_pitches(cl_mem image, const size_t *region, size_t *row, size_t *slice);

/* Does the same as image_pitches(), for rectangles in bytes. */
bool rect_pitches(const size_t *region, size_t *row, size_t *slice);

/* Computes the offset of the byte after a rectangle.  Returns false on overflow. */
bool rect_end(const size_t *origin, const size_t *region, size_t row, size_t slice, size_t *end);

#endif /* VGPU_GUEST_IMAGE_H */
