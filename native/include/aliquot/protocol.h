/* What a tenant's process and the arbiter say to each other.
 *
 * One SOCK_SEQPACKET socket per grant, `socket` in its directory. A tenant connects, says HELLO and
 * gets WELCOME with four descriptors (limits, read-only; usage, read-write; credit, sealed; work,
 * read-write), then closes: nothing of ours stays in its descriptor table, and a forked child or an
 * exec inherits nothing. Who it is the kernel tells the arbiter (SO_PEERCRED, a pidfd); a message
 * never says.
 *
 * MEASURE asks the arbiter to read the caller's figures from NVML now, and is answered with MEASURED
 * when limits.slices[].driver_bytes holds them. A tenant sends it after it made a context.
 *
 * RING says that a process is at work again after the arbiter stopped looking (credit.h); there is no
 * answer, and the sender waits for none.
 *
 * Every message has this one size and form; anything else is answered with REFUSED and closed.
 */
#ifndef ALIQUOT_PROTOCOL_H
#define ALIQUOT_PROTOCOL_H

#include <stddef.h>
#include <stdint.h>

#define ALIQUOT_MESSAGE_MAGIC 0x4d514c41u /* "ALQM" */
#define ALIQUOT_PROTOCOL 2u

enum aliquot_kind {
	ALIQUOT_HELLO = 1,    /* value: the tenant's pid in its own namespace */
	ALIQUOT_WELCOME = 2,  /* value: its slot; carries four descriptors */
	ALIQUOT_MEASURE = 3,  /* value: bytes that the sender holds for a context just made; 0: none */
	ALIQUOT_MEASURED = 4, /* */
	ALIQUOT_RING = 5,     /* */
	ALIQUOT_REFUSED = 6,  /* value: enum aliquot_refusal; text: why, for a person */
};

enum aliquot_refusal {
	ALIQUOT_REFUSED_MALFORMED = 1,
	ALIQUOT_REFUSED_VERSION = 2,
	ALIQUOT_REFUSED_OWNER = 3,  /* another user's grant */
	ALIQUOT_REFUSED_FULL = 4,   /* ALIQUOT_MAX_PROCESSES are in */
	ALIQUOT_REFUSED_BROKEN = 5, /* the grant's files cannot be trusted */
	ALIQUOT_REFUSED_TWICE = 6,  /* the same program is in already, and holds something */
	ALIQUOT_REFUSED_ENDED = 7,  /* the grant takes nobody in any more */
	ALIQUOT_REFUSED_PARKED = 8, /* the grant is open or parked: ask again, until it is not */
};

struct aliquot_message {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint64_t value;
	char text[112]; /* zero-terminated, or all zero */
};

_Static_assert(sizeof(struct aliquot_message) == 128, "part of the contract");

/* What is wrong with `size` received bytes as a message; 0: nothing, and *out holds it. */
enum aliquot_refusal aliquot_message_read(const void *bytes, size_t size,
                                          struct aliquot_message *out);

/* A message with no text. */
struct aliquot_message aliquot_message_make(enum aliquot_kind kind, uint64_t value);

#endif
