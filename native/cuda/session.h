/* This process's part in its grant.
 *
 * Opened by cuInit, the one call without which the driver does nothing: the arbiter is asked, the
 * pages are mapped, the connection is closed. After that the arbiter may die: limits, ledger and
 * credit are memory. A forked child finds no session (its page is wiped by the kernel at fork), as
 * it finds no CUDA; an exec starts anew.
 *
 * Guarantees: with no session every counted call returns CUDA_ERROR_NOT_INITIALIZED, so nothing is
 * taken that nobody counts. No lock of ours is held across a call into the driver.
 */
#ifndef ALIQUOT_SESSION_H
#define ALIQUOT_SESSION_H

#include "aliquot/credit.h"
#include "hooked.h"

#include <stdbool.h>
#include <stdint.h>

#define SESSION_NO_SLICE UINT32_MAX

/* Join the grant, when it is not parked; false: it cannot be, and why was said on stderr. */
bool session_join(void);

/* Learn which of the driver's devices is which slice, and with that open the session; false: one of
 * them is none of ours. */
bool session_open(void);
bool session_is_open(void);

/* The grant's limits, and this process's pages of credit.h, `work` for each slice; valid while a
 * session is open. */
const struct aliquot_limits *session_limits(void);
const struct aliquot_credit *session_credit(void);
struct aliquot_work_slice *session_work(void);

/* Zeroed memory that is zeroed again in a forked child: it must not go on where its parent is.
 * NULL: there is none, and why was said on stderr. */
void *session_wiped_memory(size_t size);

uint32_t session_slice_of_device(CUdevice device);
uint32_t session_slice_of_current_context(void);

/* The device that work in a stream runs on; false: there is none. */
bool session_device_of_stream(CUstream stream, CUdevice *device);

/* Take memory of a slice, or give it back. Charging fails when the slice has no room, also after
 * the pools gave up what they keep unused; reserving does not ask them. */
bool session_charge(uint32_t slice, uint64_t bytes);
bool session_reserve(uint32_t slice, uint64_t bytes);
void session_uncharge(uint32_t slice, uint64_t bytes);
void session_count_managed(uint32_t slice, int64_t bytes);

/* Write down what keeps the driver from freezing this process, for as long as it lives. */
void session_tie(enum aliquot_tie tie);

/* Count who is past the door (door.h). Precondition: a session is open. */
void session_count_inside(int64_t change);

/* What programs may still take of a slice. */
uint64_t session_left(uint32_t slice);

/* Have the arbiter read what the driver took for this process; returns when the limits tell it. */
void session_measure(void);

/* The same just after a context was made, for which so many bytes are held: the arbiter learns from it
 * what a context takes. */
void session_measure_context(uint64_t held);

/* The same after a call that may have made the driver take memory; seldom enough to cost nothing. */
void session_driver_took(void);

/* Whether what is counted and what the driver took no longer fit the slice. */
bool session_is_over(uint32_t slice);

#endif
