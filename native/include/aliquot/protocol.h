/* The messages between a tenant's process and the arbiter.
 *
 * Each grant has a SOCK_SEQPACKET socket, `socket` in its directory. A tenant connects, sends HELLO
 * and receives WELCOME with four descriptors (limits, read-only; usage, read-write; credit, read-only;
 * work, read-write). Then it closes the connection: no descriptor of ours stays in the process, and a
 * forked child or an exec inherits none. The kernel tells the arbiter which process sends
 * (SO_PEERCRED, a pidfd); a message never does.
 *
 * MEASURE asks the arbiter to read the sender's memory from NVML now. The arbiter answers MEASURED
 * when limits.slices[].driver_bytes is up to date. A tenant sends it after it has made a context.
 *
 * RING says that a process has work again while the arbiter was not looking, or that a call waits for memory
 * that left because the grant was idle (credit.h: ring, wanted). There is no answer.
 *
 * MOVER asks for a connection to the process that copies memory between a GPU and the host (move.h), of a
 * grant whose memory can leave the GPU. The answer is MOVER with that connection.
 *
 * All messages have the same size and form. The arbiter answers anything else with REFUSED and closes
 * the connection.
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
	ALIQUOT_MEASURE = 3,  /* value: bytes that the sender reserved for a new context; 0: none */
	ALIQUOT_MEASURED = 4, /* */
	ALIQUOT_RING = 5,     /* */
	ALIQUOT_REFUSED = 6,  /* value: enum aliquot_refusal; text: the reason, for a person */
	ALIQUOT_MOVER = 7,    /* value: the slice; the answer carries one descriptor */
};

enum aliquot_refusal {
	ALIQUOT_REFUSED_MALFORMED = 1,
	ALIQUOT_REFUSED_VERSION = 2,
	ALIQUOT_REFUSED_OWNER = 3,  /* the grant belongs to another user */
	ALIQUOT_REFUSED_FULL = 4,   /* it has ALIQUOT_MAX_PROCESSES */
	ALIQUOT_REFUSED_BROKEN = 5, /* the grant's files cannot be trusted */
	ALIQUOT_REFUSED_TWICE = 6,  /* the same program has joined already, and uses memory */
	ALIQUOT_REFUSED_ENDED = 7,  /* the grant has ended: no process can join */
	ALIQUOT_REFUSED_PARKED = 8, /* the grant is switching or parked: try again until it is active */
	ALIQUOT_REFUSED_NO_MOVER = 9, /* the grant's memory cannot move, or the GPU has no mover now */
};

struct aliquot_message {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;
	uint64_t value;
	char text[112]; /* zero-terminated, or all zero */
};

_Static_assert(sizeof(struct aliquot_message) == 128, "part of the contract");

/* Why `size` received bytes are not a valid message; 0: they are, and *out is the message. */
enum aliquot_refusal aliquot_message_read(const void *bytes, size_t size,
                                          struct aliquot_message *out);

/* A message with no text. */
struct aliquot_message aliquot_message_make(enum aliquot_kind kind, uint64_t value);

#endif
