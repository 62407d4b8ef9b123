/* The calls that create and destroy contexts, and what a context is charged: each takes memory that
 * the program does not ask for.
 *
 * What a context is expected to take is charged before it is created; if that does not fit, the
 * program gets "out of memory" at once. Then the arbiter measures what was really taken. It learns
 * what a context takes from the first one: all free memory of the slice is held while that one is
 * created, and threads that would create another wait. If even that one cannot be measured, it and
 * each next one is charged an estimate (ledger_context_estimate). A context that does not fit after
 * all is destroyed again, and the program gets "out of memory", as on a small GPU. */
#define _GNU_SOURCE
#include "aliquot/ledger.h"
#include "allocation.h"
#include "cancel.h"
#include "gate/gate.h"
#include "map.h"
#include "pool.h"
#include "session.h"
#include "swap/residence.h"

#include <time.h>

#define LEARNING_MS 5000
#define GIVING_BACK_MS 1000
#define TURN_MS 10000

struct context {
	uint64_t key; /* its handle */
	uint64_t bytes;
	uint32_t slice;
	uint32_t references; /* cuCtxAttach adds one, cuCtxDetach takes one away */
};

struct primary_context {
	uint64_t key; /* its device + 1 */
	CUcontext handle;
};

MAP_OF(context_map, struct context)
MAP_OF(primary_map, struct primary_context)

static struct context_map contexts;
static struct primary_map primaries;
/* By slice: a thread is creating or destroying the primary context. */
static _Atomic bool turn_taken[ALIQUOT_MAX_GPUS];
/* By slice: a context was created here, and nobody could measure it. */
static _Atomic bool unmeasured[ALIQUOT_MAX_GPUS];

static uint64_t key_of(CUcontext handle)
{
	return (uint64_t)(uintptr_t)handle;
}

static void remember(const struct context *context)
{
	struct context replaced;
	context_map_put(&contexts, context, &replaced);
	if (replaced.key) /* another thread has charged for the same context */
		session_release(replaced.slice, replaced.bytes);
}

/* A context that is being created. */
struct creation {
	uint32_t slice;
	uint64_t charged;
	bool is_first; /* nobody knows yet what a context takes */
};

/* Charge all free memory, or wait for the thread that has: then it is known what a context takes.
 * False: it is known, or the wait was too long. */
static bool charge_everything(struct creation *creation, const _Atomic uint64_t *context_bytes)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned tries = 0; tries < LEARNING_MS; tries++) {
		/* In this order: while another thread has charged everything, little is free. Once it is
		 * known what a context takes, nobody may charge everything again, since programs allocate.
		 */
		uint64_t all = session_free_bytes(creation->slice) / ALIQUOT_UNIT * ALIQUOT_UNIT;
		if (*context_bytes)
			return false;
		if (all && session_reserve(creation->slice, all)) {
			creation->charged = all;
			return true;
		}
		nanosleep(&moment, NULL);
	}
	return false;
}

/* With some patience: the thread that creates the first context gives memory back only after it is
 * known what a context takes. */
static bool charge_expected(const struct creation *creation)
{
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned tries = 0; tries < GIVING_BACK_MS; tries++) {
		if (pools_charge(creation->slice, creation->charged))
			return true;
		nanosleep(&moment, NULL);
	}
	return false;
}

static uint64_t expected_bytes(uint32_t slice)
{
	const struct aliquot_slice_limits *limits = &session_limits()->slices[slice];
	uint64_t known = limits->context_bytes;
	return known ? ledger_round(known) : ledger_context_estimate(limits->limit_bytes);
}

static bool begin_creation(struct creation *creation, CUdevice device)
{
	*creation = (struct creation){.slice = session_slice_of_device(device)};
	if (creation->slice == SESSION_NO_SLICE)
		return true; /* not a device of ours: the driver shall answer */
	const _Atomic uint64_t *known = &session_limits()->slices[creation->slice].context_bytes;
	creation->is_first = !*known && !unmeasured[creation->slice] &&
	                     charge_everything(creation, known);
	if (creation->is_first)
		return true; /* what it takes is measured when it is there */
	creation->charged = expected_bytes(creation->slice);
	return charge_expected(creation);
}

/* Have the first context measured, and give back what it did not take. Returns what it took. */
static uint64_t measure_first(const struct creation *creation)
{
	session_measure_context(creation->charged);
	uint64_t took = expected_bytes(creation->slice);
	if (!session_limits()->slices[creation->slice].context_bytes)
		unmeasured[creation->slice] = true;
	if (took > creation->charged)
		took = creation->charged;
	session_release(creation->slice, creation->charged - took);
	return took;
}

/* Remember the context and its charge, or give the charge back; false: it was not created, or
 * exceeds the slice's limit. */
static bool finish_charge(const struct creation *creation, CUresult result, CUcontext handle)
{
	struct context context = {
		.key = key_of(handle),
		.bytes = creation->charged,
		.slice = creation->slice,
		.references = 1,
	};
	if (creation->slice == SESSION_NO_SLICE)
		return result == CUDA_SUCCESS;
	if (result != CUDA_SUCCESS) {
		session_release(creation->slice, creation->charged);
		return false;
	}
	struct context earlier;
	if (context_map_get(&contexts, context.key, &earlier)) {
		/* This thread waited in vain for its turn; another has created and charged the context. */
		session_release(creation->slice, creation->charged);
		return true;
	}
	if (creation->is_first)
		context.bytes = measure_first(creation);
	remember(&context);
	session_measure();
	return !session_exceeds_limit(creation->slice);
}

/* An error: the context was not created, or must be destroyed again. */
static CUresult finish_creation(const struct creation *creation, CUresult result, CUcontext context,
                                CUdevice device)
{
	CUresult gated = result == CUDA_SUCCESS ? gate_context_created(context, device) : result;
	bool fits = finish_charge(creation, result, context);
	return gated == CUDA_SUCCESS && !fits ? CUDA_ERROR_OUT_OF_MEMORY : gated;
}

/* The driver has destroyed the context. */
static void forget(CUcontext handle)
{
	struct context_allocations allocations;
	struct context context;
	gate_context_ended(handle, true);
	allocations_take(handle, &allocations);
	allocations_release(&allocations);
	if (context_map_take(&contexts, key_of(handle), &context))
		session_release(context.slice, context.bytes);
	session_measure();
}

static CUresult destroy_again(CUcontext *context, CUresult why)
{
	CUcontext handle = *context;
	gate_context_ending(handle);
	REAL(cuCtxDestroy_v2)(handle);
	forget(handle);
	*context = NULL;
	return why;
}

/* The calls that create a context differ in the arguments between the context and the device. A thread
 * that was cancelled inside would leave the slice charged for a context that nobody has. */
#define CREATE(context, device, call)                                                              \
	do {                                                                                           \
		struct creation creation;                                                                  \
		CUresult result = CUDA_ERROR_OUT_OF_MEMORY;                                                \
		if (!session_is_open())                                                                    \
			return CUDA_ERROR_NOT_INITIALIZED;                                                     \
		if (!(context))                                                                            \
			return call;                                                                           \
		int cancel = cancel_disable();                                                             \
		if (begin_creation(&creation, device)) {                                                   \
			CUresult created = call;                                                               \
			result = finish_creation(&creation, created, *(context), device);                      \
			if (result != CUDA_SUCCESS && created == CUDA_SUCCESS)                                 \
				result = destroy_again(context, result);                                           \
		}                                                                                          \
		cancel_restore(cancel);                                                                    \
		return result;                                                                             \
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

/* We forget everything first: the driver may give the handle to another thread at once. */
CUresult hook_context_destroy(__typeof__(&cuCtxDestroy_v2) real, CUcontext handle)
{
	struct context_allocations allocations;
	struct context context;
	if (!session_is_open())
		return real(handle);
	allocations_take(handle, &allocations);
	bool known = context_map_take(&contexts, key_of(handle), &context);
	gate_context_ending(handle);
	CUresult result = real(handle);
	gate_context_ended(handle, result == CUDA_SUCCESS);
	if (result != CUDA_SUCCESS) {
		allocations_restore(&allocations);
		if (known)
			remember(&context);
		return result;
	}
	allocations_release(&allocations);
	if (known)
		session_release(context.slice, context.bytes);
	session_measure();
	return result;
}

/* Returns the number of references after the change; 1 for a context that is not ours. */
static uint32_t change_references(CUcontext handle, int change)
{
	context_map_lock(&contexts);
	struct context *context = context_map_find(&contexts, key_of(handle));
	uint32_t references = context ? context->references += (uint32_t)change : 1;
	context_map_unlock(&contexts);
	return references;
}

CUresult hook_context_attach(__typeof__(&cuCtxAttach) real, CUcontext *context, unsigned flags)
{
	CUresult result = real(context, flags);
	if (result == CUDA_SUCCESS)
		change_references(*context, 1);
	return result;
}

CUresult hook_context_detach(__typeof__(&cuCtxDetach) real, CUcontext context)
{
	gate_context_ending(context);
	CUresult result = real(context);
	if (result == CUDA_SUCCESS && change_references(context, -1) == 0)
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

static CUresult release_primary_again(CUcontext *context, CUdevice device, CUresult why)
{
	CUcontext handle = *context;
	gate_context_ending(handle);
	REAL(cuDevicePrimaryCtxRelease_v2)(device);
	if (!primary_is_active(device))
		forget(handle);
	else
		gate_context_ended(handle, false);
	*context = NULL;
	return why;
}

struct turn {
	bool taken; /* false: the wait was in vain */
	int cancel;
};

/* One thread at a time creates or destroys a slice's primary context. Otherwise each would charge
 * for the same context, and together they would fill the slice. Nobody waits for ever, since the
 * driver may hang. The thread that has the turn is not cancelled. */
static struct turn take_turn(uint32_t slice)
{
	struct turn turn = {.cancel = cancel_disable()};
	struct timespec moment = {.tv_nsec = 1000 * 1000};
	for (unsigned tries = 0; tries < TURN_MS && !turn.taken; tries++)
		if (!(turn.taken = !atomic_exchange(&turn_taken[slice], true)))
			nanosleep(&moment, NULL);
	return turn;
}

static void end_turn(uint32_t slice, struct turn turn)
{
	if (turn.taken)
		atomic_store(&turn_taken[slice], false);
	cancel_restore(turn.cancel);
}

static CUresult retain_again(__typeof__(&cuDevicePrimaryCtxRetain) real, CUcontext *context,
                             CUdevice device)
{
	CUresult result = real(context, device);
	if (result != CUDA_SUCCESS)
		return result;
	result = gate_context_created(*context, device);
	return result == CUDA_SUCCESS ? result : release_primary_again(context, device, result);
}

static CUresult retain_first(__typeof__(&cuDevicePrimaryCtxRetain) real, CUcontext *context,
                             CUdevice device)
{
	struct creation creation;
	if (!begin_creation(&creation, device))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult created = real(context, device);
	CUresult result = finish_creation(&creation, created, created == CUDA_SUCCESS ? *context : NULL,
	                                  device);
	if (created != CUDA_SUCCESS)
		return created;
	struct primary_context primary = {.key = (uint64_t)device + 1, .handle = *context}, replaced;
	primary_map_put(&primaries, &primary, &replaced);
	return result == CUDA_SUCCESS ? result : release_primary_again(context, device, result);
}

CUresult hook_primary_retain(__typeof__(&cuDevicePrimaryCtxRetain) real, CUcontext *context,
                             CUdevice device)
{
	if (!session_is_open())
		return CUDA_ERROR_NOT_INITIALIZED;
	uint32_t slice = session_slice_of_device(device);
	if (!context || slice == SESSION_NO_SLICE)
		return real(context, device);
	/* To create a context takes memory of the GPU; to retain one that is there does not wait. */
	struct residence_call resident = {0};
	if (residence_matters() && !primary_is_active(device))
		resident = residence_enter();
	struct turn turn = take_turn(slice);
	CUresult result = primary_is_active(device) ? retain_again(real, context, device)
	                                            : retain_first(real, context, device);
	end_turn(slice, turn);
	residence_leave(resident);
	return result;
}

static CUresult end_primary(__typeof__(&cuDevicePrimaryCtxRelease_v2) real, CUdevice device)
{
	struct primary_context primary;
	bool known = primary_map_get(&primaries, (uint64_t)device + 1, &primary);
	if (known)
		gate_context_ending(primary.handle);
	CUresult result = real(device);
	if (!known)
		return result;
	bool gone = result == CUDA_SUCCESS && !primary_is_active(device) &&
	            primary_map_take(&primaries, (uint64_t)device + 1, &primary);
	if (gone)
		forget(primary.handle);
	else
		gate_context_ended(primary.handle, false);
	return result;
}

/* Release and reset: the device tells whether the context is gone. */
CUresult hook_primary_end(__typeof__(&cuDevicePrimaryCtxRelease_v2) real, CUdevice device)
{
	uint32_t slice = session_is_open() ? session_slice_of_device(device) : SESSION_NO_SLICE;
	if (slice == SESSION_NO_SLICE)
		return real(device);
	struct turn turn = take_turn(slice);
	CUresult result = end_primary(real, device);
	end_turn(slice, turn);
	return result;
}
