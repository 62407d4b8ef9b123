#define _GNU_SOURCE
#include "gate/base.h"

#include "cancel.h"
#include "session.h"

#include <time.h>

#define PAUSE_NS 50000
#define TURNS_PATIENCE 5 /* times the patience, while processes take turns */

struct gates *_Atomic gates_page;

struct gates *gates_here(void)
{
	struct gates *all = atomic_load_explicit(&gates_page, memory_order_acquire);
	return all && session_is_open() ? all : NULL;
}

uint64_t gate_now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* --- which thread has which lock, for the invariants ------------------------------------------- */

#ifdef ALIQUOT_SANITIZE

static _Thread_local unsigned relaxed_depth;

static void set_lock_holder(struct gates *all, uintptr_t thread)
{
	atomic_store(&all->lock_holder, thread);
}

static void set_holder(struct gate *gate, uintptr_t thread)
{
	atomic_store(&gate->holder, thread);
}

static bool has_lock(struct gates *all)
{
	return all && atomic_load(&all->lock_holder) == gate_thread();
}

static bool has_a_gate(struct gates *all)
{
	for (unsigned i = 0; all && i < ALIQUOT_MAX_GPUS; i++)
		if (gate_is_mine(&all->gates[i]))
			return true;
	return false;
}

bool gate_is_mine(const struct gate *gate)
{
	return atomic_load(&gate->holder) == gate_thread();
}

static void change_depth(int change)
{
	relaxed_depth += (unsigned)change;
}

bool gate_is_relaxed(void)
{
	return relaxed_depth > 0;
}

#else

#define set_lock_holder(all, thread) ((void)0)
#define set_holder(gate, thread) ((void)0)
#define has_lock(all) false
#define has_a_gate(all) false
#define change_depth(change) ((void)0)

bool gate_is_mine(const struct gate *gate)
{
	return atomic_load_explicit(&gate->taken, memory_order_relaxed);
}

bool gate_is_relaxed(void)
{
	return true;
}

#endif

/* --- the locks -------------------------------------------------------------------------------- */

void gates_lock(struct gates *all)
{
	INVARIANT(!has_lock(all));
	aliquot_lock(&all->lock);
	set_lock_holder(all, gate_thread());
}

void gates_unlock(struct gates *all)
{
	set_lock_holder(all, 0);
	aliquot_unlock(&all->lock);
}

static bool try_lock(struct gate *gate)
{
	bool taken = false;
	if (!atomic_compare_exchange_strong_explicit(&gate->taken, &taken, true, memory_order_acquire,
	                                             memory_order_relaxed))
		return false;
	gate->cancel = cancel_disable();
	set_holder(gate, gate_thread());
	INVARIANT(!atomic_load(&gate->touching));
	return true;
}

/* If one thread has waited too long, the others do not wait: the holder is blocked in the driver,
 * or its thread is gone. But while processes take turns the holder may be blocked for want of
 * credit, and a launch that does not wait runs without a gate: so there each one waits. */
static bool wait_for_lock(struct gate *gate, uint64_t patience_ns)
{
	struct timespec pause = {.tv_nsec = PAUSE_NS};
	if (patience_ns == 0)
		return false;
	if (gate_takes_turns(gate))
		patience_ns *= TURNS_PATIENCE;
	else if (atomic_load_explicit(&gate->is_stuck, memory_order_relaxed))
		return false;
	for (uint64_t end = gate_now_ns() + patience_ns; gate_now_ns() < end;) {
		nanosleep(&pause, NULL);
		if (try_lock(gate))
			return true;
	}
	atomic_store_explicit(&gate->is_stuck, true, memory_order_relaxed);
	return false;
}

bool gate_lock(struct gate *gate, uint64_t patience_ns)
{
	INVARIANT(!has_a_gate(atomic_load(&gates_page)));
	INVARIANT(!has_lock(atomic_load(&gates_page)));
	return try_lock(gate) || wait_for_lock(gate, patience_ns);
}

void gate_unlock(struct gate *gate)
{
	INVARIANT(gate_is_mine(gate));
	INVARIANT(!atomic_load(&gate->touching));
	int cancel = gate->cancel;
	set_holder(gate, 0);
	atomic_store_explicit(&gate->is_stuck, false, memory_order_relaxed);
	atomic_store_explicit(&gate->taken, false, memory_order_release);
	cancel_restore(cancel);
}

/* --- the driver ------------------------------------------------------------------------------- */

CUstreamCaptureMode gate_relax_capture_mode(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	INVARIANT(!has_lock(atomic_load(&gates_page)));
	if (REAL(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
	change_depth(1);
	return mode;
}

void gate_restore_capture_mode(CUstreamCaptureMode mode)
{
	change_depth(-1);
	if (REAL(cuThreadExchangeStreamCaptureMode))
		REAL(cuThreadExchangeStreamCaptureMode)(&mode);
}

bool gate_is_capturing(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	return !REAL(cuStreamIsCapturing) ||
	       REAL(cuStreamIsCapturing)(stream, &status) != CUDA_SUCCESS ||
	       status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool gate_push_context(const struct gate_context *context, bool *pushed)
{
	CUcontext current = NULL, handle = atomic_load(&context->handle);
	*pushed = false;
	INVARIANT(!has_lock(atomic_load(&gates_page)));
	if (REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == handle)
		return true;
	*pushed = REAL(cuCtxPushCurrent_v2)(handle) == CUDA_SUCCESS;
	return *pushed;
}

void gate_pop_context(bool pushed)
{
	CUcontext popped;
	if (pushed)
		REAL(cuCtxPopCurrent_v2)(&popped);
}

bool gate_is_sticky(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_CONTAINED:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_LAUNCH_TIMEOUT:
	case CUDA_ERROR_ASSERT:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_ILLEGAL_INSTRUCTION:
	case CUDA_ERROR_MISALIGNED_ADDRESS:
	case CUDA_ERROR_INVALID_ADDRESS_SPACE:
	case CUDA_ERROR_INVALID_PC:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_EXTERNAL_DEVICE:
	case CUDA_ERROR_MPS_CLIENT_TERMINATED:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}
