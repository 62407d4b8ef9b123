/* Contexts: each takes memory that no call of the program asks for.
 *
 * What one is expected to take is charged before it is made, so that it is refused rather than made
 * when there is no room; then the arbiter measures what was really taken. What one takes is learned
 * from the first: it is made with all that is left of the slice held for it, while others that would
 * make one wait. A context that does not fit after all is ended again, and the program told "out of
 * memory", as a small card would. */
#define _GNU_SOURCE
#include "aliquot/ledger.h"
#include "gate/gate.h"
#include "memory.h"
#include "session.h"
#include "table.h"

#include <time.h>

#define LEARNING_MS 5000
#define GIVING_BACK_MS 1000
#define MAKING_MS 10000

static struct table contexts;
static struct table primaries;                    /* device + 1 -> its primary context */
static _Atomic bool turn_taken[ALIQUOT_MAX_GPUS]; /* of a slice's primary context, by one thread */

static void remember(const struct record *record)
{
	struct record replaced;
	table_put(&contexts, record, &replaced);
	if (replaced.key) /* another thread has charged for the same context */
		session_uncharge(replaced.slice, replaced.bytes);
}

/* Everything the creating calls have in common but the call itself. */
struct creation {
	uint32_t slice;
	uint64_t expected; /* charged for it */
	bool learning;     /* it is the first: what it takes is not known */
};

/* Hold all that is left, or wait for the one who does: then it is known what a context takes. */
static bool hold_all(struct creation *creation, const _Atomic uint64_t *context_bytes)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned tries = 0; tries < LEARNING_MS; tries++) {
		/* In this order: what is left is little until it is known what a context takes, and then
		 * nobody may hold it all again, since programs allocate. */
		uint64_t left = session_left(creation->slice) / ALIQUOT_UNIT * ALIQUOT_UNIT;
		if (*context_bytes)
			return false;
		if (left && session_reserve(creation->slice, left)) {
			creation->expected = left;
			return true;
		}
		nanosleep(&moment, NULL);
	}
	return false;
}

/* With patience: what is held for the first context is given back only after it is known what one
 * takes. */
static bool charge(const struct creation *creation)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned tries = 0; tries < GIVING_BACK_MS; tries++) {
		if (session_charge(creation->slice, creation->expected))
			return true;
		nanosleep(&moment, NULL);
	}
	return false;
}

static bool begin(struct creation *creation, CUdevice device)
{
	*creation = (struct creation){.slice = session_slice_of_device(device)};
	if (creation->slice == SESSION_NO_SLICE)
		return true; /* no device of ours: the driver says what it thinks of that */
	const _Atomic uint64_t *known = &session_limits()->slices[creation->slice].context_bytes;
	creation->learning = !*known && hold_all(creation, known);
	if (creation->learning || !*known)
		return true; /* nobody tells what a context takes: it is found when it is there */
	creation->expected = ledger_round(*known);
	return charge(creation);
}

/* Keep of what was held for the first context what it took. */
static uint64_t settle(const struct creation *creation)
{
	session_measure_context(creation->expected);
	uint64_t took = ledger_round(session_limits()->slices[creation->slice].context_bytes);
	if (took > creation->expected)
		took = creation->expected;
	session_uncharge(creation->slice, creation->expected - took);
	return took;
}

static bool finish(const struct creation *creation, CUresult result, CUcontext context)
{
	struct record record = {
		.key = (uint64_t)(uintptr_t)context,
		.bytes = creation->expected,
		.slice = creation->slice,
		.kind = RECORD_PLAIN,
		.handles = 1,
	};
	if (creation->slice == SESSION_NO_SLICE)
		return result == CUDA_SUCCESS;
	if (result != CUDA_SUCCESS) {
		session_uncharge(creation->slice, creation->expected);
		return false;
	}
	struct record earlier;
	if (table_take(&contexts, record.key, &earlier)) {
		/* A thread that waited for its turn in vain retained what another has made and charged. */
		session_uncharge(creation->slice, creation->expected);
		remember(&earlier);
		return true;
	}
	if (creation->learning)
		record.bytes = settle(creation);
	remember(&record);
	session_measure();
	return !session_is_over(creation->slice);
}

/* Success: the context stands, with its gates. Else it was not made, or must not stand. */
static CUresult end(const struct creation *creation, CUresult result, CUcontext context,
                    CUdevice device)
{
	CUresult gated = result == CUDA_SUCCESS ? gate_context_created(context, device) : result;
	bool fits = finish(creation, result, context);
	return gated == CUDA_SUCCESS && !fits ? CUDA_ERROR_OUT_OF_MEMORY : gated;
}

static void forget(CUcontext context)
{
	struct memory_of_context memory;
	struct record record;
	gate_context_ended(context, true);
	memory_take_context(context, &memory);
	memory_give_back_context(&memory);
	if (table_take(&contexts, (uint64_t)(uintptr_t)context, &record))
		session_uncharge(record.slice, record.bytes);
	session_measure();
}

static CUresult refuse(CUcontext *context, CUresult why)
{
	CUcontext made = *context;
	gate_context_ending(made);
	REAL(cuCtxDestroy_v2)(made);
	forget(made);
	*context = NULL;
	return why;
}

/* The creating calls differ in what stands between the context and the device. */
#define CREATE(context, device, call)                                                              \
	do {                                                                                           \
		struct creation creation;                                                                  \
		if (!session_is_open())                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                     \
		if (!(context))                                                                            \
			return call;                                                                           \
		if (!begin(&creation, device))                                                             \
			return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
		CUresult made = call;                                                                      \
		CUresult result = end(&creation, made, *(context), device);                                \
		if (result == CUDA_SUCCESS || made != CUDA_SUCCESS)                                        \
			return result;                                                                         \
		return refuse(context, result);                                                            \
	} while (0)

CUresult hook_context_create(__typeof__(&cuCtxCreate_v2) real, CUcontext *context, unsigned flags,
                             CUdevice device)
{
	CREATE(context, device, real(context, flags, device));
}

CUresult hook_context_create_v3(__typeof__(&cuCtxCreate_v3) real, CUcontext *context,
                                CUexecAffinityParam *parameters, int count, unsigned flags,
                                CUdevice device)
{
	CREATE(context, device, real(context, parameters, count, flags, device));
}

CUresult hook_context_create_v4(__typeof__(&cuCtxCreate_v4) real, CUcontext *context,
                                CUctxCreateParams *parameters, unsigned flags, CUdevice device)
{
	CREATE(context, device, real(context, parameters, flags, device));
}

/* Out of the books before the driver is asked: it may give the handle to another thread at once. */
CUresult hook_context_destroy(__typeof__(&cuCtxDestroy_v2) real, CUcontext context)
{
	struct memory_of_context memory;
	struct record record;
	if (!session_is_open())
		return real(context);
	memory_take_context(context, &memory);
	bool known = table_take(&contexts, (uint64_t)(uintptr_t)context, &record);
	gate_context_ending(context);
	CUresult result = real(context);
	gate_context_ended(context, result == CUDA_SUCCESS);
	if (result != CUDA_SUCCESS) {
		memory_keep_context(&memory);
		if (known)
			remember(&record);
		return result;
	}
	memory_give_back_context(&memory);
	if (known)
		session_uncharge(record.slice, record.bytes);
	session_measure();
	return result;
}

static bool attach(struct record *record, void *unused)
{
	(void)unused;
	record->handles++;
	return false;
}

CUresult hook_context_attach(__typeof__(&cuCtxAttach) real, CUcontext *context, unsigned flags)
{
	CUresult result = real(context, flags);
	if (result == CUDA_SUCCESS)
		table_change(&contexts, (uint64_t)(uintptr_t)*context, attach, NULL);
	return result;
}

static bool detach(struct record *record, void *gone)
{
	*(bool *)gone = --record->handles == 0;
	return false;
}

CUresult hook_context_detach(__typeof__(&cuCtxDetach) real, CUcontext context)
{
	bool gone = false;
	gate_context_ending(context);
	CUresult result = real(context);
	if (result == CUDA_SUCCESS)
		table_change(&contexts, (uint64_t)(uintptr_t)context, detach, &gone);
	if (gone)
		forget(context);
	else
		gate_context_ended(context, false);
	return result;
}

static bool primary_is_active(CUdevice device)
{
	unsigned flags;
	int active = 0;
	return REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active;
}

static CUresult refuse_primary(CUcontext *context, CUdevice device, CUresult why)
{
	CUcontext made = *context;
	gate_context_ending(made);
	REAL(cuDevicePrimaryCtxRelease_v2)(device);
	if (!primary_is_active(device))
		forget(made);
	else
		gate_context_ended(made, false);
	*context = NULL;
	return why;
}

/* One thread at a time makes or ends a primary context, and the others wait for it: each would charge
 * for the same one, and together they would fill the slice. Not for ever, since the driver may hang;
 * false: it was waited for in vain. */
static bool take_turn(uint32_t slice)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned tries = 0; tries < MAKING_MS; tries++) {
		if (!atomic_exchange(&turn_taken[slice], true))
			return true;
		nanosleep(&moment, NULL);
	}
	return false;
}

static void end_turn(uint32_t slice, bool taken)
{
	if (taken)
		atomic_store(&turn_taken[slice], false);
}

static CUresult retain_again(__typeof__(&cuDevicePrimaryCtxRetain) real, CUcontext *context,
                             CUdevice device)
{
	CUresult result = real(context, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = gate_context_created(*context, device);
	return result == CUDA_SUCCESS ? result : refuse_primary(context, device, result);
}

static CUresult retain_first(__typeof__(&cuDevicePrimaryCtxRetain) real, CUcontext *context,
                             CUdevice device)
{
	struct creation creation;
	if (!begin(&creation, device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult made = real(context, device);
	CUresult result = end(&creation, made, made == CUDA_SUCCESS ? *context : NULL, device);
	if (made != CUDA_SUCCESS)
		return made;
	struct record primary = {.key = (uint64_t)device + 1, .of = *context}, replaced;
	table_put(&primaries, &primary, &replaced);
	return result == CUDA_SUCCESS ? result : refuse_primary(context, device, result);
}

CUresult hook_primary_retain(__typeof__(&cuDevicePrimaryCtxRetain) real, CUcontext *context,
                             CUdevice device)
{
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	uint32_t slice = session_slice_of_device(device);
	if (!context || slice == SESSION_NO_SLICE)
		return real(context, device);
	bool turn = take_turn(slice);
	CUresult result = primary_is_active(device) ? retain_again(real, context, device)
	                                            : retain_first(real, context, device);
	end_turn(slice, turn);
	return result;
}

static CUresult end_primary(__typeof__(&cuDevicePrimaryCtxRelease_v2) real, CUdevice device)
{
	struct record primary;
	bool known = table_get(&primaries, (uint64_t)device + 1, &primary);
	if (known)
		gate_context_ending(primary.of);
	CUresult result = real(device);
	if (!known)
		return result;
	bool gone = result == CUDA_SUCCESS && !primary_is_active(device) &&
	            table_take(&primaries, (uint64_t)device + 1, &primary);
	if (gone)
		forget(primary.of);
	else
		gate_context_ended(primary.of, false);
	return result;
}

/* Release and reset: the context is gone when the device says so. */
CUresult hook_primary_end(__typeof__(&cuDevicePrimaryCtxRelease_v2) real, CUdevice device)
{
	uint32_t slice = session_is_open() ? session_slice_of_device(device) : SESSION_NO_SLICE;
	if (slice == SESSION_NO_SLICE)
		return real(device);
	bool turn = take_turn(slice);
	CUresult result = end_primary(real, device);
	end_turn(slice, turn);
	return result;
}
