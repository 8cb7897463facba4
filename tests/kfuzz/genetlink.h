/* SPDX-License-Identifier: GPL-2.0 */
/* Generic netlink for a dump; the program (fuzz_dump.c) receives the messages. */
#ifndef KFUZZ_GENETLINK_H
#define KFUZZ_GENETLINK_H

#include <linux/netlink.h>

#define sizeof_field(type, member) sizeof(((type *)0)->member)

struct genl_info;
struct netlink_ext_ack;
struct genl_family { int unused; };
struct sk_buff { unsigned int len; };

struct netlink_callback {
	struct sk_buff *skb;
	const struct nlmsghdr *nlh;
	struct netlink_ext_ack *extack;
	unsigned int prev_seq, seq;
	u32 min_dump_alloc;
	u8 ctx[48] __attribute__((aligned(8)));
};

#define NETLINK_CB(skb) ((struct { u32 portid; }){ 0 })
#define NL_SET_ERR_MSG(extack, text) ((void)(extack))
struct nlattr **vgpu_dump_attrs(struct netlink_callback *cb);
void *nla_data(const struct nlattr *attr);

void *genlmsg_put(struct sk_buff *skb, u32 portid, u32 seq, const struct genl_family *family,
		  int flags, u8 command);
void genlmsg_cancel(struct sk_buff *skb, void *header);
void genlmsg_end(struct sk_buff *skb, void *header);

/* As in include/net/netlink.h; for every message and for the one that ends a list. */
static inline void nl_dump_check_consistent(struct netlink_callback *cb, struct nlmsghdr *header)
{
	if (cb->prev_seq && cb->seq != cb->prev_seq)
		header->nlmsg_flags |= NLM_F_DUMP_INTR;
	cb->prev_seq = cb->seq;
}

#define genl_dump_check_consistent(cb, header) nl_dump_check_consistent(cb, header)

#endif /* KFUZZ_GENETLINK_H */
