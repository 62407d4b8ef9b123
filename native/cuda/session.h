/* This process's part in its grant.
 *
 * cuInit opens the session, since the driver does nothing before that call: we ask the arbiter, map
 * the pages, and close the connection. After that the arbiter may die: limits, ledger and credit
 * are memory. A forked child has no session (the kernel wipes its page at fork), as it has no CUDA;
 * an exec starts anew.
 *
 * Guarantees: without a session every charged call returns CUDA_ERROR_NOT_INITIALIZED, so nothing
 * is allocated uncharged. No lock of ours is held across a call into the driver.
 */
#ifndef ALIQUOT_SESSION_H
#define ALIQUOT_SESSION_H

#include "aliquot/credit.h"
#include "hooked.h"

#include <stdbool.h>
#include <stdint.h>

#define SESSION_NO_SLICE UINT32_MAX

/* Join the grant; while it is parked, wait. False: joining failed, and stderr has the reason. */
bool session_join(void);

/* Find out which of the driver's devices is which slice, and open the session; false: a device is
 * not in the grant. */
bool session_open(void);
bool session_is_open(void);

/* The grant's limits, and this process's pages of credit.h, `work` for each slice. Precondition:
 * the session is joined. */
const struct aliquot_limits *session_limits(void);
const struct aliquot_credit *session_credit(void);
struct aliquot_work_slice *session_work(void);

/* The memory at *where, which the first caller makes: zeroed, and zeroed again by the kernel in a
 * forked child, so a lock in it is free there. NULL: there is none, and stderr has the reason. */
void *session_wiped_memory(void *_Atomic *where, size_t size);

/* SESSION_NO_SLICE: none of ours. */
uint32_t session_slice_of_device(CUdevice device);
uint32_t session_slice_of_current_context(void);

/* The device that a stream's work runs on; false: there is none. */
bool session_device_of_stream(CUstream stream, CUdevice *device);

/* Take memory of a slice; false: it does not fit. Most callers want pools_charge (pool.h), which
 * has the pools give up memory first. */
bool session_reserve(uint32_t slice, uint64_t bytes);
/* Give memory back. */
void session_release(uint32_t slice, uint64_t bytes);
/* Count managed memory, which is charged like other memory. */
void session_count_managed(uint32_t slice, int64_t bytes);
/* Count memory that is charged and can leave the GPU (swap/swappable.h). All other charged memory is
 * reported as fixed. */
void session_count_movable(int64_t bytes);
/* What programs may still take of a slice. */
uint64_t session_free_bytes(uint32_t slice);

/* Write down a reason why the driver cannot freeze this process. It stays for as long as it lives.
 */
void session_tie(enum aliquot_tie tie);
/* All of them: bits of enum aliquot_tie. */
uint32_t session_ties(void);

/* Count the threads past the freeze barrier (freeze_barrier.h). Precondition: the session is open.
 */
void session_count_inside(int64_t change);

/* Have the arbiter measure what the driver has taken for this process; returns when the limits show
 * it. */
void session_measure(void);

/* The same right after a context was created, for which `held` bytes are charged: the arbiter
 * learns from it what a context takes. */
void session_measure_context(uint64_t held);

/* The same after a call that may have made the driver allocate memory for itself; not more often
 * than every 10 ms. */
void session_driver_allocated(void);

/* Whether what is charged and what the driver took together exceed the slice's limit. */
bool session_exceeds_limit(uint32_t slice);

#endif
