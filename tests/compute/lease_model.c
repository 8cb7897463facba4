// SPDX-License-Identifier: Apache-2.0
/*
 * Plays a child's lease machine against an arbiter in every order of their accesses.
 *
 * The child's stores go through a store buffer, like on x86, and a barrier empties it.
 * The arbiter makes one access at a time, and its own stores are in order.  The environment
 * queues work, ends work, brings a rival, lets time pass, and closes the gate.  Each state is
 * visited once.  The program prints the number of states.  If a state breaks a rule, it prints
 * the first such state and the path to it.
 *
 *	lease_model LENDINGS [no-child-barrier | no-arbiter-barrier | forget-want]
 *
 * Each of these words breaks one side on purpose, to show that the rules detect it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "executor/child/lease_client.h"

#define PIECES		2
#define PROLONGINGS	1
#define END		1000	/* a time after the present one, which is 1 */
#define BUFFER		4
#define DATAGRAMS	4
#define STATES		(1u << 24)
#define TABLE		(1u << 25)

enum arbiter {
	NOBODY,		/* no child of this slice has the lease */
	LENDING_EXPIRY, LENDING_LEASE, LENDING_WAKE,
	LENT,
	PROLONGING_WAKE,
	RECALLING_BARRIER, RECALLING_LOOK,
	RECALLED,	/* waits for a yield or for expiry */
	EXPIRING_WAKE, EXPIRING_LOOK,
	EXPIRED,	/* waits for a yield or for the gate */
	TAKING_WAKE,
};

struct store {
	uint32_t word;
	uint32_t value;
};

struct datagram {
	uint16_t op;
	uint16_t flags;
	uint32_t lease;
};

struct state {
	struct vgpu_lease_client client;
	/* the child's state between accesses */
	uint64_t loaded;
	struct store buffer[BUFFER];
	uint8_t buffered;
	uint8_t operating;
	uint8_t may_submit;
	uint8_t queued;
	uint8_t under_way;
	uint8_t brought;
	/* shared words */
	uint64_t lease;
	uint64_t expires;
	uint64_t stream;
	uint32_t wake;
	struct datagram datagrams[DATAGRAMS];
	uint8_t sent;
	/* the arbiter's state */
	uint8_t arbiter;
	uint8_t ready;
	uint8_t rival;
	uint8_t frozen;
	uint8_t lendings;
	uint8_t prolongings;
	uint8_t lease_buffered;	/* the store in lease_store is not visible yet (no-arbiter-barrier) */
	uint64_t lease_store;
};

static bool child_barrier = true, arbiter_barrier = true, remember_want = true;
static uint8_t lendings;
static struct state *states;
static uint32_t *came_from;
static const char **came_by;
static uint32_t *table;		/* index in states, plus one */
static uint32_t visited, present;

static void print_way(uint32_t to)
{
	if (!to)
		return;
	print_way(came_from[to]);
	printf("%s, ", came_by[to]);
}

static void broken(const struct state *s, const char *rule)
{
	printf("broken: %s\nlease %llu:%llu stream %llu busy %d queued %d under way %d arbiter %d ready %d\n",
	       rule, (unsigned long long)(s->lease >> 2), (unsigned long long)(s->lease & 3),
	       (unsigned long long)s->stream, s->client.busy, s->queued, s->under_way, s->arbiter,
	       s->ready);
	print_way(present);
	printf("and then this\n");
	exit(1);
}

static uint64_t hash(const struct state *s)
{
	const uint64_t *words = (const uint64_t *)s;
	uint64_t h = 14695981039346656037ull;

	for (size_t i = 0; i < sizeof(*s) / 8; i++) {
		h = (h ^ words[i]) * 0x9e3779b97f4a7c15ull;
		h ^= h >> 29;
	}
	return h;
}

/* Between operations, it only matters whether the wake word has changed. */
static struct state plain(struct state s)
{
	if (!s.operating) {
		s.wake = s.wake != s.client.wake;
		s.client.wake = 0;
	}
	return s;
}

/* Records a state that can follow the present one, if the state is new. */
static void go(const struct state *reached, const char *name)
{
	const struct state made_plain = plain(*reached), *to = &made_plain;
	uint64_t at = hash(to) & (TABLE - 1);

	for (; table[at]; at = (at + 1) & (TABLE - 1))
		if (!memcmp(&states[table[at] - 1], to, sizeof(*to)))
			return;
	if (visited == STATES) {
		printf("too many states\n");
		exit(2);
	}
	states[visited] = *to;
	came_from[visited] = present;
	came_by[visited] = name;
	table[at] = ++visited;
}

/* The child's accesses */

static void flush_one(struct state *s)
{
	if (s->buffer[0].word == VGPU_LEASE_STORE_STATE)
		s->stream = s->buffer[0].value;
	memmove(&s->buffer[0], &s->buffer[1], sizeof(s->buffer) - sizeof(s->buffer[0]));
	memset(&s->buffer[BUFFER - 1], 0, sizeof(s->buffer[0]));
	s->buffered--;
}

static void begin(struct state *s, enum vgpu_lease_operation operation, uint32_t flags)
{
	vgpu_lease_begin(&s->client, operation, 1, flags);
	s->operating = 1;
	s->loaded = 0;
}

/* Does one access, or one decision between operations.  Returns false if the child sleeps. */
static bool child(struct state *s)
{
	struct vgpu_lease_step step;

	if (s->may_submit) {
		if (s->arbiter == NOBODY || s->arbiter == TAKING_WAKE)
			broken(s, "a child submits without a lease");
		s->may_submit = 0;
		s->queued--;
		s->under_way++;
		return true;
	}
	if (!s->operating) {
		switch (vgpu_lease_need(&s->client, s->queued, s->under_way, s->wake)) {
		case VGPU_LEASE_NEED_START:
			begin(s, VGPU_LEASE_START, 0);
			return true;
		case VGPU_LEASE_NEED_CHECK:
			begin(s, VGPU_LEASE_CHECK, 0);
			return true;
		case VGPU_LEASE_NEED_DRY:
			begin(s, VGPU_LEASE_DRY, 0);
			return true;
		case VGPU_LEASE_NEED_STOP:
			begin(s, VGPU_LEASE_STOP, 0);
			return true;
		case VGPU_LEASE_NEED_SLEEP:
			return false;
		}
	}
	step = vgpu_lease_next(&s->client, s->loaded);
	s->loaded = 0;
	switch (step.access) {
	case VGPU_LEASE_LOAD_WAKE:
		s->loaded = s->wake;
		break;
	case VGPU_LEASE_LOAD_LEASE:
		s->loaded = s->lease;
		break;
	case VGPU_LEASE_LOAD_EXPIRES:
		s->loaded = s->expires;
		break;
	case VGPU_LEASE_LOAD_BEGUN:
	case VGPU_LEASE_LOAD_GENERATION:
		break;
	case VGPU_LEASE_STORE_STATE:
	case VGPU_LEASE_STORE_DRY_SINCE:
	case VGPU_LEASE_STORE_IDLE:
		if (s->buffered == BUFFER)
			flush_one(s);
		s->buffer[s->buffered++] = (struct store){ step.access, (uint32_t)step.value };
		break;
	case VGPU_LEASE_BARRIER:
		while (child_barrier && s->buffered)
			flush_one(s);
		break;
	case VGPU_LEASE_SEND:
		if (s->sent == DATAGRAMS)
			broken(s, "a child floods its arbiter");
		s->datagrams[s->sent++] = (struct datagram){
			(uint16_t)step.request.op, (uint16_t)step.request.flags,
			(uint32_t)step.request.lease,
		};
		break;
	case VGPU_LEASE_RESULT:
		s->operating = 0;
		if (s->client.operation == VGPU_LEASE_CHECK && step.result == VGPU_LEASE_GO)
			s->may_submit = 1;
		/* The next operation sets these fields anew.  Clearing them makes more states equal. */
		s->client.operation = 0;
		s->client.at = 0;
		s->client.candidate = 0;
		s->client.was_busy = false;
		break;
	}
	return true;
}

/* The arbiter */

static void take(struct state *s, bool gate)
{
	if (!gate && (s->under_way || s->may_submit))
		broken(s, "a lease is taken back from a child at work");
	if (gate && s->stream & VGPU_STREAM_BUSY)
		s->ready = 1;
	s->lease = s->lease >> VGPU_LEASE_STATE_BITS << VGPU_LEASE_STATE_BITS | VGPU_LEASE_NONE;
	s->arbiter = TAKING_WAKE;
}

static void set_lease(struct state *s, uint64_t number, enum vgpu_lease_state state)
{
	s->lease = number << VGPU_LEASE_STATE_BITS | state;
}

static void recall(struct state *s)
{
	uint64_t number = s->lease >> VGPU_LEASE_STATE_BITS;

	if (arbiter_barrier) {
		set_lease(s, number, VGPU_LEASE_RECALLED);
	} else {
		s->lease_buffered = 1;
		s->lease_store = number << VGPU_LEASE_STATE_BITS | VGPU_LEASE_RECALLED;
	}
	s->arbiter = RECALLING_BARRIER;
}

static void receive(struct state *s)
{
	struct datagram request = s->datagrams[0];
	uint64_t number = s->lease >> VGPU_LEASE_STATE_BITS;

	memmove(&s->datagrams[0], &s->datagrams[1], sizeof(s->datagrams) - sizeof(request));
	memset(&s->datagrams[DATAGRAMS - 1], 0, sizeof(request));
	s->sent--;
	if (request.op == VGPU_STREAM_READY || (request.flags & VGPU_YIELD_WANT && remember_want))
		s->ready = 1;
	if (request.op != VGPU_STREAM_YIELD || request.lease != number)
		return;
	/* The lease had expired, and was prolonged before the child yielded. */
	if (s->arbiter == LENT)
		recall(s);
	else if ((s->arbiter == RECALLED || s->arbiter == EXPIRED) && !(s->stream & VGPU_STREAM_BUSY))
		take(s, false);
}

/* Does the arbiter's next access of its own accord.  Returns false if it waits. */
static bool arbiter(struct state *s)
{
	uint64_t number = s->lease >> VGPU_LEASE_STATE_BITS;

	switch ((enum arbiter)s->arbiter) {
	case NOBODY:
		if (!s->ready || s->lendings == lendings)
			return false;
		s->ready = 0;
		s->lendings++;
		s->arbiter = LENDING_EXPIRY;
		return true;
	case LENDING_EXPIRY:
		s->expires = s->rival ? END : UINT64_MAX;
		s->arbiter = LENDING_LEASE;
		return true;
	case LENDING_LEASE:
		set_lease(s, number + 1, VGPU_LEASE_LENT);
		s->arbiter = LENDING_WAKE;
		return true;
	case LENDING_WAKE:
		s->wake++;
		s->frozen = 0;
		s->arbiter = LENT;
		return true;
	case LENT:
		if (!s->rival || s->expires != UINT64_MAX)
			return false;
		s->expires = END;
		recall(s);
		return true;
	case RECALLING_BARRIER:
		s->wake++;
		s->arbiter = RECALLING_LOOK;
		return true;
	case RECALLING_LOOK:
	case EXPIRING_LOOK:
		if (s->stream & VGPU_STREAM_BUSY) {
			s->arbiter = s->arbiter == RECALLING_LOOK ? RECALLED : EXPIRED;
		} else {
			s->lease_buffered = 0;
			s->lease_store = 0;
			take(s, false);
		}
		return true;
	case EXPIRING_WAKE:
		s->wake++;
		s->arbiter = EXPIRING_LOOK;
		return true;
	case PROLONGING_WAKE:
		s->wake++;
		s->arbiter = LENT;
		return true;
	case TAKING_WAKE:
		s->wake++;
		s->arbiter = NOBODY;
		return true;
	case RECALLED:
	case EXPIRED:
		return false;
	}
	return false;
}

/* No side can move of its own accord: check that none waits in vain. */
static void rest(const struct state *s)
{
	if (s->sent || s->buffered || s->frozen || s->under_way)
		return;
	if (s->arbiter == NOBODY && s->queued && s->lendings < lendings)
		broken(s, "work is queued, and the arbiter does not know");
	if (s->arbiter == LENT && s->queued && !s->rival && s->expires)
		broken(s, "work is queued under a lease, and the child sleeps");
	if (s->arbiter == RECALLED && s->lease >> VGPU_LEASE_STATE_BITS)
		broken(s, "the arbiter waits for a yield that does not come");
	if (s->arbiter == LENT && s->expires == END && !s->queued &&
	    s->stream >> 1 == s->lease >> VGPU_LEASE_STATE_BITS)
		broken(s, "a child is dry under a lease that others wait for, and does not say so");
}

static void visit(const struct state *from)
{
	struct state s;
	bool moved = false;

	if (!from->frozen) {
		s = *from;
		if (child(&s)) {
			moved = true;
			go(&s, "child");
		}
		if (from->under_way) {
			s = *from;
			s.under_way--;
			go(&s, "end");
		}
	}
	if (from->buffered) {
		s = *from;
		flush_one(&s);
		go(&s, "flush");
	}
	s = *from;
	if (arbiter(&s)) {
		moved = true;
		go(&s, "arbiter");
	}
	if (from->lease_buffered) {
		s = *from;
		s.lease = s.lease_store;
		s.lease_buffered = 0;
		s.lease_store = 0;
		go(&s, "arbiter's store");
	}
	/* The arbiter receives between its own steps. */
	if (from->sent && (from->arbiter == NOBODY || from->arbiter == LENT ||
			   from->arbiter == RECALLED || from->arbiter == EXPIRED)) {
		s = *from;
		receive(&s);
		go(&s, "receive");
	}
	if (!moved)
		rest(from);
	/* The environment */
	if (from->brought < PIECES) {
		s = *from;
		s.brought++;
		s.queued++;
		go(&s, "work");
	}
	if (from->arbiter == LENT || from->arbiter == NOBODY) {
		s = *from;
		s.rival = !s.rival;
		go(&s, "rival");
	}
	/* The child has had enough time to start. */
	if (from->arbiter == LENT && from->expires == END) {
		s = *from;
		recall(&s);
		go(&s, "recall");
	}
	if (from->expires == END && (from->arbiter == LENT || from->arbiter == RECALLED)) {
		s = *from;
		s.expires = 0;
		go(&s, "time");
	}
	if (!from->expires && (from->arbiter == LENT || from->arbiter == RECALLED)) {
		s = *from;
		set_lease(&s, s.lease >> VGPU_LEASE_STATE_BITS, VGPU_LEASE_EXPIRED);
		s.arbiter = EXPIRING_WAKE;
		go(&s, "expire");
	}
	if (from->expires != UINT64_MAX && !from->rival && from->arbiter == LENT &&
	    from->prolongings < PROLONGINGS) {
		s = *from;
		s.prolongings++;
		s.expires = UINT64_MAX;
		s.arbiter = PROLONGING_WAKE;
		go(&s, "prolong");
	}
	if (from->arbiter == EXPIRED) {
		s = *from;
		s.frozen = 1;
		take(&s, true);
		go(&s, "gate");
	}
}

int main(int argc, char **argv)
{
	static struct state first;

	if (argc > 2) {
		child_barrier = strcmp(argv[2], "no-child-barrier");
		arbiter_barrier = strcmp(argv[2], "no-arbiter-barrier");
		remember_want = strcmp(argv[2], "forget-want");
	}
	lendings = (uint8_t)(argc > 1 ? atoi(argv[1]) : 0);
	states = calloc(STATES, sizeof(*states));
	came_from = calloc(STATES, sizeof(*came_from));
	came_by = calloc(STATES, sizeof(*came_by));
	table = calloc(TABLE, sizeof(*table));
	if (!states || !came_from || !came_by || !table)
		return 2;
	go(&first, "start");
	for (; present < visited; present++) {
		const struct state from = states[present];

		visit(&from);
	}
	printf("%u states\n", visited);
	return 0;
}
