// SPDX-License-Identifier: GPL-2.0
#include "single.h"

#include <errno.h>
#include <string.h>

int single_run(struct transport *transport, const struct vgpu_desc *descs,
	       uint32_t count, unsigned int flags, uint64_t timeout_ns,
	       struct vgpu_completion *completions)
{
	struct vgpu_completion found[SINGLE_ITEMS_MAX];
	uint32_t collected = 0, outstanding;
	int rc;

	if (count > SINGLE_ITEMS_MAX)
		return transport_fail(transport, -EINVAL, "%u items at once",
				      count);
	rc = transport->ops->submit(transport, descs, count, flags, &outstanding);
	if (!rc)
		rc = transport->ops->wait(transport, found, SINGLE_ITEMS_MAX,
					  count, timeout_ns, &collected);
	if (completions)
		memcpy(completions, found, collected * sizeof(*found));
	if (!rc && collected != count)
		rc = transport_fail(transport, -EPROTO,
				    "%u completions for %u items", collected,
				    count);
	return rc;
}
