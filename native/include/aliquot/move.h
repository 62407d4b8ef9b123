/* Memory that leaves the GPU and comes back: the messages between a program and the mover.
 *
 * THE MODEL
 *
 * In a grant with swap=1 the memory that programs allocate lies in pieces: physical memory (cuMemCreate)
 * that can be exported, mapped at addresses that never change. The arbiter says in `limits` where the
 * memory shall be (layout.h: residence). Each process of the grant has a thread that sleeps on that word.
 *
 * To leave, the thread
 *   1. holds all calls of the program that use memory (cuda/swap/residence.h), and waits until those
 *      inside the driver have returned and the GPU has nothing left to do for the process. Gates are open
 *      meanwhile: the grant is switching;
 *   2. exports each piece and sends it to the mover (MOVE_OUT). The mover, a process of the arbiter's with
 *      a context of its own on that GPU, copies it to the host's arena and drops it (DONE);
 *   3. unmaps and releases the piece. Now its memory is free for others.
 *
 * To return, it creates and maps a new piece at the same address, sends it (MOVE_IN), and when all are DONE
 * lets the calls continue and frees the copies (FORGET).
 *
 * Each step is written to the process's work page (credit.h: residence, away_bytes).
 *
 * GUARANTEES
 *   - A piece is in at least one place at any time: the program releases it after DONE, and the mover keeps
 *     its copy until FORGET. So either side may be killed at any instruction, and only a killed program's
 *     own memory is lost.
 *   - The arena (arena.h) is in files in memory that the arbiter's parent holds: a mover that dies is
 *     restarted and finds it as it was. No program can map any of it, and the mover gives a piece only to the process that
 *     it came from: the arbiter says which process is at the other end of a connection.
 *   - If a move out fails, for any piece, all pieces return, and the program continues.
 *
 * A connection is of SOCK_SEQPACKET. It carries one request after the other, each answered in its order; a program may send several
 * before it reads. Closing it changes nothing in the arena.
 */
#ifndef ALIQUOT_MOVE_H
#define ALIQUOT_MOVE_H

#include <stddef.h>
#include <stdint.h>

#define ALIQUOT_MOVE_MAGIC 0x4d564c41u /* "ALVM" */
#define ALIQUOT_MOVE_VERSION 1u

enum aliquot_move_kind {
	ALIQUOT_MOVE_OUT = 1,    /* with the piece's descriptor: copy it to the host */
	ALIQUOT_MOVE_IN = 2,     /* with the new piece's descriptor: copy it back */
	ALIQUOT_MOVE_FORGET = 3, /* free the copy; piece 0: all copies of this process */
	ALIQUOT_MOVE_DONE = 4,   /* answer */
	ALIQUOT_MOVE_FAILED = 5, /* answer; text: the reason, for a person */
};

/* Why memory did not leave or return. */
enum aliquot_move_failure {
	ALIQUOT_MOVE_NO_MOVER = 1,    /* the mover cannot be reached */
	ALIQUOT_MOVE_HOST_FULL = 2,   /* the host has too little free memory for the copy */
	ALIQUOT_MOVE_GPU_FULL = 3,    /* the GPU has too little free memory for the piece */
	ALIQUOT_MOVE_BUSY = 4,        /* the GPU did not finish the program's work in time */
	ALIQUOT_MOVE_DRIVER = 5,      /* the driver refused a call */
	ALIQUOT_MOVE_UNKNOWN = 6,     /* the mover has no such copy, or of another size */
	ALIQUOT_MOVE_MALFORMED = 7,   /* no valid message */
	ALIQUOT_MOVE_UNSWAPPABLE = 8, /* the program uses managed memory */
};

struct aliquot_move {
	uint32_t magic;
	uint16_t version;
	uint16_t kind;  /* enum aliquot_move_kind */
	uint64_t piece; /* its address in the program */
	uint64_t bytes;
	uint32_t failure; /* enum aliquot_move_failure; of FAILED */
	char text[100];   /* zero-terminated, or all zero */
};

_Static_assert(sizeof(struct aliquot_move) == 128, "part of the contract");

/* Whether `size` received bytes are a request to the mover; then *out is that request. Its text is not
 * looked at. */
int aliquot_move_read(const void *bytes, size_t size, struct aliquot_move *out);

/* A message with no text. */
struct aliquot_move aliquot_move_make(enum aliquot_move_kind kind, uint64_t piece, uint64_t bytes);

#endif
