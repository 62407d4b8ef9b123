/* Credit: when a process's work may start on a GPU. The GPU itself waits for it.
 *
 * Work is cut into quanta, numbered from 1 for each process and slice. A quantum belongs to the
 * process, not to a stream: before a stream's first launch in quantum t a gate is put into it, at
 * which the GPU waits until credit >= t; at the quantum's end a mark goes into every stream used in
 * it, which the GPU writes when it has come so far. All marks of t are in their streams before any
 * gate of t + 1 is: streams share hardware queues, and a mark behind a gate would never come.
 *
 * Each process has two pages of its own, memfds that the arbiter makes and hands over with WELCOME:
 *
 * `credit` is written by the arbiter alone (and by its parent when it has died), sealed against
 * everyone else's writing, and registered read-only with the driver. `work` is written by the
 * process and its GPUs; what it says is believed only about the process itself.
 *
 * How far a process is: every mark that a stream gets is one more in `asked`, and its `done` is the
 * number of those the GPU has reached. The sum of all `done` against a quantum's `marks` tells
 * whether it is over, and the arbiter needs no list of who used which stream.
 *
 * Guarantees: a credit of ALIQUOT_OPEN passes every gate; sizes and offsets are fixed for a
 * VERSION (layout.h); every word is read and written whole.
 */
#ifndef ALIQUOT_CREDIT_H
#define ALIQUOT_CREDIT_H

#include "aliquot/layout.h"

#define ALIQUOT_CREDIT_MAGIC 0x3144455243514c41ull /* "ALQCRED1" */
#define ALIQUOT_WORK_MAGIC 0x314b524f57514c41ull   /* "ALQWORK1" */

/* A multiple of every page size, as the driver's registration wants it. */
#define ALIQUOT_CREDIT_SIZE 65536u
#define ALIQUOT_WORK_SIZE 65536u /* of each slice */

#define ALIQUOT_OPEN (UINT64_C(1) << 62)

#define ALIQUOT_QUANTUM_NS 700000u /* unless the arbiter says otherwise */

#define ALIQUOT_QUANTA 2048u /* remembered: no process is further ahead of its GPU than this */
#define ALIQUOT_MARKS 3064u  /* streams with work at the same time */
#define ALIQUOT_TIMINGS 128u

/* How a process is to cut its work. */
enum aliquot_pace {
	ALIQUOT_ALONE = 0, /* long quanta, and none closed early: nobody waits for their ends */
	ALIQUOT_TURNS = 1, /* quanta of quantum_ns, closed when the process stops to wait */
	ALIQUOT_YIELD = 2, /* as TURNS; and what is open now is closed at the next launch */
};

/* Whether gates can be had for a process on a GPU: its self-test's word. */
enum aliquot_gates {
	ALIQUOT_GATES_UNTRIED = 0,
	ALIQUOT_GATES_WORK = 1,
	ALIQUOT_GATES_FAIL = 2, /* memory limits only */
};

/* What the arbiter has measured: the quanta up to `quantum` had `busy_ns` of the GPU's time in all. */
struct aliquot_timing {
	_Atomic uint64_t quantum;
	_Atomic uint64_t busy_ns;
};

struct aliquot_credit_slice {
	_Atomic uint64_t credit;     /* the newest quantum that may start */
	_Atomic uint32_t pace;       /* enum aliquot_pace */
	_Atomic uint32_t ring;       /* 1: nobody is looking; say RING after the next launch */
	_Atomic uint32_t quantum_ns; /* how long a quantum should be while turns are taken */
	_Atomic uint32_t timed;      /* timings ever written; the newest is at (timed - 1) % TIMINGS */
	uint64_t reserved[5];
	struct aliquot_timing timings[ALIQUOT_TIMINGS];
};

struct aliquot_credit {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* ALIQUOT_CREDIT_SIZE */
	uint64_t reserved[6];
	struct aliquot_credit_slice slices[ALIQUOT_MAX_GPUS];
};

/* One quantum, at (its number) % QUANTA; written before `closed` names it. */
struct aliquot_quantum {
	_Atomic uint32_t marks;       /* all marks ever, up to and with this quantum's (wraps) */
	_Atomic uint32_t expected_ns; /* how long it should take */
};

/* One stream's marks. */
struct aliquot_mark {
	_Atomic uint64_t done;  /* written by the GPU */
	_Atomic uint64_t asked; /* written by the process, before the mark is in the stream */
};

struct aliquot_work_slice {
	uint64_t magic;
	uint32_t version;
	uint32_t size;              /* ALIQUOT_WORK_SIZE */
	_Atomic uint64_t opened;    /* the newest quantum that has begun; 0: none */
	_Atomic uint64_t closed;    /* the newest whose marks are all in their streams */
	_Atomic uint64_t launches;  /* ever: it changes while the process is at work */
	_Atomic uint32_t gates;     /* enum aliquot_gates */
	_Atomic uint32_t why;       /* what the driver said when they fail */
	_Atomic uint32_t marks_end; /* marks from here on were never used */
	uint32_t reserved[19];
	struct aliquot_quantum quanta[ALIQUOT_QUANTA];
	struct aliquot_mark marks[ALIQUOT_MARKS];
};

/* `work` is an array of as many as the grant has slices. */

_Static_assert(sizeof(struct aliquot_credit_slice) == 64 + 16 * ALIQUOT_TIMINGS, "contract");
_Static_assert(sizeof(struct aliquot_credit) <= ALIQUOT_CREDIT_SIZE, "contract");
_Static_assert(offsetof(struct aliquot_work_slice, quanta) == 128, "contract");
_Static_assert(sizeof(struct aliquot_work_slice) == ALIQUOT_WORK_SIZE, "contract");

/* What is wrong with mapped pages of `size` bytes; NULL: nothing. */
const char *aliquot_credit_check(const struct aliquot_credit *credit, size_t size);
const char *aliquot_work_check(const struct aliquot_work_slice *work, uint32_t slices, size_t size);

/* The newest quantum that is over, from the newest known to be over before: a pure look at the page. */
uint64_t aliquot_work_done(const struct aliquot_work_slice *work, uint64_t known);

#endif
