/* Credit: the number up to which the work of a process may start on a GPU. The GPU itself waits for it.
 *
 * Work is cut into quanta, numbered from 1 for each process and slice. A quantum belongs to the
 * process, not to a stream. Before a stream's first launch in quantum t the process puts a gate into
 * the stream; there the GPU waits until credit >= t. At the end of the quantum it puts a mark into
 * every stream that the quantum used; the GPU writes the mark when it gets there. All marks of t are
 * in their streams before any gate of t + 1: streams share hardware queues, and the GPU would never
 * reach a mark behind a closed gate.
 *
 * Each process has two pages, files in memory that the arbiter makes and sends with WELCOME:
 *
 * The arbiter writes `credit`, and its parent or guard after it died. Others get it read-only, and it
 * is registered read-only with the driver. The process and its GPUs write `work`.
 *
 * A tenant can write anything to `work`. The arbiter reads it with aliquot_work_read alone, which
 * returns checked values. A lie changes what its own slice gets, and nothing else.
 *
 * Progress: `asked` counts the marks put into a stream, `done` those that the GPU has reached. A
 * quantum is done when the sum of all `done` reaches its `marks`. So the arbiter needs no list of
 * which quantum used which stream.
 *
 * Guarantees: a credit of ALIQUOT_OPEN passes every gate; sizes and offsets are fixed for a
 * VERSION (layout.h); every word is read and written whole.
 */
#ifndef ALIQUOT_CREDIT_H
#define ALIQUOT_CREDIT_H

#include "aliquot/layout.h"

#define ALIQUOT_CREDIT_MAGIC 0x3144455243514c41ull /* "ALQCRED1" */
#define ALIQUOT_WORK_MAGIC 0x314b524f57514c41ull   /* "ALQWORK1" */

/* A multiple of every page size, as the driver's registration requires. */
#define ALIQUOT_CREDIT_SIZE 65536u
#define ALIQUOT_WORK_SIZE 65536u /* of each slice */

#define ALIQUOT_OPEN (UINT64_C(1) << 62)

#define ALIQUOT_QUANTUM_NS 700000u /* unless the arbiter sets another */

#define ALIQUOT_QUANTA 2048u /* recorded: no process is further ahead of its GPU */
#define ALIQUOT_MARKS 3064u  /* streams with work at the same time */
#define ALIQUOT_TIMINGS 128u

/* No process gets that far: sums with smaller counts neither wrap nor reach ALIQUOT_OPEN. */
#define ALIQUOT_QUANTUM_LAST (UINT64_C(1) << 61)
#define ALIQUOT_AHEAD 64u                    /* quanta whose estimates the arbiter reads */
#define ALIQUOT_EXPECTED_MOST_NS 1000000000u /* it believes no longer estimate */

/* How a process cuts its work into quanta. */
enum aliquot_pace {
	ALIQUOT_ALONE = 0, /* long quanta, none closed early: no other slice waits for their end */
	ALIQUOT_TURNS = 1, /* quanta of quantum_ns, also closed when the process waits for the GPU */
	ALIQUOT_YIELD = 2, /* as TURNS; and the open quantum is closed at the next launch */
};

/* Whether gates work for a process on a GPU: the result of its self-test. */
enum aliquot_gates {
	ALIQUOT_GATES_UNTRIED = 0,
	ALIQUOT_GATES_WORK = 1,
	ALIQUOT_GATES_FAIL = 2, /* memory limits only */
	/* Found by aliquot_work_read: the page has counts that no stand-in writes. It stays so. */
	ALIQUOT_GATES_INVALID = 3,
};

/* A measurement by the arbiter: all quanta up to `quantum` together took `busy_ns` of GPU time. */
struct aliquot_timing {
	_Atomic uint64_t quantum;
	_Atomic uint64_t busy_ns;
};

struct aliquot_credit_slice {
	_Atomic uint64_t credit; /* the newest quantum that may start */
	_Atomic uint32_t pace;   /* enum aliquot_pace */
	_Atomic uint32_t ring;   /* 1: the arbiter is not looking; send RING after the next launch */
	_Atomic uint32_t quantum_ns; /* target length of a quantum while slices take turns */
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

/* One quantum, at (its number) % QUANTA; written before `closed` is advanced to it. */
struct aliquot_quantum {
	_Atomic uint32_t marks;       /* number of all marks up to and including this quantum (wraps) */
	_Atomic uint32_t expected_ns; /* estimate of its GPU time */
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
	_Atomic uint64_t opened;    /* the newest quantum that has started; 0: none */
	_Atomic uint64_t closed;    /* the newest whose marks are all in their streams */
	_Atomic uint64_t launches;  /* number of launches: it changes while the process works */
	_Atomic uint32_t gates;     /* enum aliquot_gates */
	_Atomic uint32_t why;       /* the CUDA error code if they fail */
	_Atomic uint32_t marks_end; /* marks from here on were never used */
	/* Where the process's memory is (move.h); only in the first slice. A tenant can write anything here:
	 * what is free on a GPU is decided by what NVML says. */
	_Atomic uint32_t
		residence; /* the newest aliquot_slice_limits.residence that it has dealt with */
	_Atomic uint32_t
		move_failed; /* enum aliquot_move_failure: why its memory did not leave; 0: it did */
	_Atomic uint32_t wanted; /* the newest such word with ALIQUOT_ON_HOST at which a call waits */
	_Atomic uint64_t away_bytes;  /* of its memory, on the host now */
	_Atomic uint64_t fixed_bytes; /* of its charged memory, cannot leave */
	_Atomic uint64_t calls; /* that use memory, and 1; now and then, if limits say counts_calls */
	_Atomic uint32_t draining; /* the word for which it waits until the GPU has no work of it */
	uint32_t reserved[9];
	struct aliquot_quantum quanta[ALIQUOT_QUANTA];
	struct aliquot_mark marks[ALIQUOT_MARKS];
};

/* `work` is an array with one element for each slice of the grant. */

/* What a work page says, checked. The counts are in order, done <= closed <= opened <= closed + 1, at
 * most ALIQUOT_QUANTUM_LAST + 1, and never less than in an earlier view. */
struct aliquot_work_view {
	uint64_t done, closed, opened;
	uint64_t launches; /* any number: only a change means something */
	enum aliquot_gates gates;
	uint32_t why;
	uint64_t
		finished_ns; /* estimates of the quanta done since the earlier view, as far as recorded */
	uint32_t expected_ns[ALIQUOT_AHEAD]; /* of quantum done + 1 + i, if it is closed */
};

_Static_assert(sizeof(struct aliquot_credit_slice) == 64 + 16 * ALIQUOT_TIMINGS, "contract");
_Static_assert(sizeof(struct aliquot_credit) <= ALIQUOT_CREDIT_SIZE, "contract");
_Static_assert(offsetof(struct aliquot_work_slice, quanta) == 128, "contract");
_Static_assert(sizeof(struct aliquot_work_slice) == ALIQUOT_WORK_SIZE, "contract");

/* Why mapped pages of `size` bytes are invalid; NULL: they are valid. */
const char *aliquot_credit_check(const struct aliquot_credit *credit, size_t size);
const char *aliquot_work_check(const struct aliquot_work_slice *work, uint32_t slices, size_t size);

/* Reads each word of the page at most once, in a bounded number of steps. `before` is the last view of
 * this page, or all zeroes. If the page is impossible (a count went backwards or beyond
 * ALIQUOT_QUANTUM_LAST, `opened` is behind `closed`, there are quanta before the self-test, or
 * `gates` is no known value), the view stays as it was before, with `gates` INVALID for good.
 *
 * A count may advance by any number: a process that is alone is not observed. */
struct aliquot_work_view aliquot_work_read(const struct aliquot_work_slice *work,
                                           const struct aliquot_work_view *before);

/* For a process that looks at its own page: the newest quantum that is done. `known` was the newest at
 * an earlier call. */
uint64_t aliquot_work_done(const struct aliquot_work_slice *work, uint64_t known);

#endif
