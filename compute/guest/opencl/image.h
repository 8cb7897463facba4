/* SPDX-License-Identifier: Apache-2.0 */
/* Images and rectangles: sizes and checks. */
#ifndef VGPU_GUEST_IMAGE_H
#define VGPU_GUEST_IMAGE_H

#include "guest/opencl/memory.h"

/* Bytes of a pixel, 0 for a format that there is not. */
size_t image_element_bytes(const cl_image_format *format);

/* Is the region, in pixels, inside the image? */
bool image_region_fits(cl_mem image, const size_t *origin, const size_t *region);

/* Fills pitches of 0 in with those of a dense copy; false if they are too small for the region. */
bool image_pitches(cl_mem image, const size_t *region, size_t *row, size_t *slice);

/* The same for rectangles in bytes. */
bool rect_pitches(const size_t *region, size_t *row, size_t *slice);

/* The byte behind a rectangle's last; false if there is no such number. */
bool rect_end(const size_t *origin, const size_t *region, size_t row, size_t slice, size_t *end);

#endif /* VGPU_GUEST_IMAGE_H */
