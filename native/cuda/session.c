#define _GNU_SOURCE
#include "session.h"

#include "aliquot/ledger.h"
#include "aliquot/lock.h"
#include "arbiter_call.h"
#include "cancel.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_DEVICES 64
/* With less than this free, the driver's own memory is measured anew before memory is taken. */
#define NEAR_LIMIT (UINT64_C(256) << 20)
#define FRESH_NS (UINT64_C(10) * 1000 * 1000)
/* How long we wait for an answer, and how long we ask for none after one did not come: a hung
 * arbiter must not stop its tenants. */
#define MEASURE_MS 1000
#define MEASURE_AGAIN_MS 50
#define MEASURE_FIRST_MS 5000 /* longer than the arbiter waits for NVML (measure.c) */
#define SILENCE_NS (UINT64_C(10) * 1000 * 1000 * 1000)
/* Between two attempts to join a grant that is parked. */
#define PARKED_MS 100

struct session {
	struct aliquot_lock joining; /* one thread at a time asks the arbiter */
	_Atomic bool joined;         /* the arbiter accepted us: the pages are mapped */
	_Atomic bool open;           /* and all devices of the driver are in the grant */
	struct aliquot_lock ledger;  /* one thread at a time writes this process's slot */
	const struct aliquot_limits *limits;
	struct aliquot_usage *usage;
	const struct aliquot_credit *credit;
	struct aliquot_work_slice *work;
	uint32_t slot;
	uint64_t movable; /* under `ledger`: charged in the first slice, and can leave the GPU */
	_Atomic uint32_t slice_of_device[MAX_DEVICES];
	_Atomic uint64_t measure_at_ns; /* no measurement before that time */
};

/* A fork wipes it, with its locks: a child must not write into its parent's slot, nor wait for a
 * thread that it does not have. */
static void *_Atomic page;

static struct session *current(void)
{
	struct session *session = atomic_load_explicit(&page, memory_order_acquire);
	if (!session || !atomic_load_explicit(&session->joined, memory_order_acquire))
		return NULL;
	return session;
}

static uint64_t now_ns(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
	return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void *wiped_memory(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED) {
		forward_say("no memory for the session");
		return NULL;
	}
	if (madvise(memory, size, MADV_WIPEONFORK) != 0) {
		forward_say("this kernel cannot wipe memory in a forked child (needs Linux 4.14)");
		munmap(memory, size);
		return NULL;
	}
	return memory;
}

void *session_wiped_memory(void *_Atomic *where, size_t size)
{
	void *there = atomic_load_explicit(where, memory_order_acquire), *made = NULL;
	if (there || !(made = wiped_memory(size)))
		return there;
	if (atomic_compare_exchange_strong(where, &there, made))
		return made;
	munmap(made, size); /* another thread was faster */
	return there;
}

static enum arbiter_hello join(struct session *session)
{
	struct arbiter_welcome welcome;
	enum arbiter_hello answer = arbiter_hello(&welcome);
	if (answer != ARBITER_WELCOMES)
		return answer;
	session->limits = welcome.limits;
	session->usage = welcome.usage;
	session->credit = welcome.credit;
	session->work = welcome.work;
	session->slot = welcome.slot;
	for (unsigned i = 0; i < MAX_DEVICES; i++)
		session->slice_of_device[i] = SESSION_NO_SLICE;
	atomic_store_explicit(&session->joined, true, memory_order_release);
	return answer;
}

static enum arbiter_hello ask_once(struct session *session)
{
	int cancel = cancel_disable();
	aliquot_lock(&session->joining);
	enum arbiter_hello answer = session->joined ? ARBITER_WELCOMES : join(session);
	aliquot_unlock(&session->joining);
	cancel_restore(cancel);
	return answer;
}

bool session_join(void)
{
	struct timespec moment = {.tv_nsec = PARKED_MS * 1000 * 1000};
	struct session *session = session_wiped_memory(&page, sizeof(*session));
	while (session && ask_once(session) == ARBITER_PARKED)
		nanosleep(&moment, NULL);
	return current() != NULL;
}

bool session_is_open(void)
{
	struct session *session = current();
	return session && atomic_load_explicit(&session->open, memory_order_acquire);
}

const struct aliquot_limits *session_limits(void)
{
	return current()->limits;
}

const struct aliquot_credit *session_credit(void)
{
	return current()->credit;
}

struct aliquot_work_slice *session_work(void)
{
	return current()->work;
}

static uint32_t slice_by_uuid(const struct aliquot_limits *limits, const CUuuid *uuid)
{
	for (uint32_t i = 0; i < limits->slice_count; i++)
		if (memcmp(limits->slices[i].uuid, uuid->bytes, sizeof(limits->slices[i].uuid)) == 0)
			return i;
	return SESSION_NO_SLICE;
}

bool session_open(void)
{
	struct session *session = current();
	int count = 0;
	if (!session || REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS || count > MAX_DEVICES)
		return false;
	for (int i = 0; i < count; i++) {
		CUdevice device;
		CUuuid uuid;
		/* The second version tells a MIG instance from its GPU. */
		__typeof__(&cuDeviceGetUuid) get_uuid = REAL(cuDeviceGetUuid_v2);
		if (!get_uuid)
			get_uuid = REAL(cuDeviceGetUuid);
		if (REAL(cuDeviceGet)(&device, i) != CUDA_SUCCESS || device < 0 || device >= MAX_DEVICES ||
		    get_uuid(&uuid, device) != CUDA_SUCCESS)
			return false;
		session->slice_of_device[device] = slice_by_uuid(session->limits, &uuid);
		if (session->slice_of_device[device] == SESSION_NO_SLICE)
			return false;
	}
	atomic_store_explicit(&session->open, true, memory_order_release);
	return true;
}

uint32_t session_slice_of_device(CUdevice device)
{
	struct session *session = current();
	if (!session || device < 0 || device >= MAX_DEVICES)
		return SESSION_NO_SLICE;
	return session->slice_of_device[device];
}

uint32_t session_slice_of_current_context(void)
{
	CUdevice device;
	if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		return SESSION_NO_SLICE;
	return session_slice_of_device(device);
}

bool session_device_of_stream(CUstream stream, CUdevice *device)
{
	CUcontext context;
	/* The default streams are the current context's. */
	if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
		return REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
	if (REAL(cuStreamGetDevice))
		return REAL(cuStreamGetDevice)(stream, device) == CUDA_SUCCESS;
	if (REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS ||
	    REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS)
		return false;
	bool known = REAL(cuCtxGetDevice)(device) == CUDA_SUCCESS;
	REAL(cuCtxPopCurrent_v2)(&context);
	return known;
}

uint64_t session_free_bytes(uint32_t slice)
{
	struct session *session = current();
	uint64_t capacity = ledger_capacity(&session->limits->slices[slice]);
	uint64_t total = ledger_total(&session->usage->slices[slice]);
	return total < capacity ? capacity - total : 0;
}

/* With the lock `ledger`: say how much of what is charged cannot leave the GPU. */
static void report_fixed(struct session *session)
{
	if (!session->limits->slices[0].swap)
		return;
	uint64_t held = ledger_held(&session->usage->slices[0], session->slot);
	uint64_t fixed = held > session->movable ? held - session->movable : 0;
	atomic_store_explicit(&session->work->fixed_bytes, fixed, memory_order_relaxed);
}

bool session_reserve(uint32_t slice, uint64_t bytes)
{
	struct session *session = current();
	uint64_t free_bytes = session_free_bytes(slice);
	if (free_bytes < NEAR_LIMIT || free_bytes - NEAR_LIMIT < bytes)
		session_driver_allocated();
	aliquot_lock(&session->ledger);
	bool fits = ledger_reserve(&session->usage->slices[slice], &session->limits->slices[slice],
	                           session->slot, bytes);
	report_fixed(session);
	aliquot_unlock(&session->ledger);
	return fits;
}

void session_release(uint32_t slice, uint64_t bytes)
{
	struct session *session = current();
	if (!session || slice == SESSION_NO_SLICE || bytes == 0)
		return;
	aliquot_lock(&session->ledger);
	ledger_release(&session->usage->slices[slice], session->slot, bytes);
	report_fixed(session);
	aliquot_unlock(&session->ledger);
}

void session_count_movable(int64_t bytes)
{
	struct session *session = current();
	if (!session || bytes == 0)
		return;
	aliquot_lock(&session->ledger);
	session->movable += (uint64_t)bytes;
	report_fixed(session);
	aliquot_unlock(&session->ledger);
}

void session_count_managed(uint32_t slice, int64_t bytes)
{
	struct session *session = current();
	if (session && slice != SESSION_NO_SLICE)
		atomic_fetch_add(&session->usage->slices[slice].entries[session->slot].managed,
		                 (uint64_t)bytes);
}

void session_tie(enum aliquot_tie tie)
{
	struct session *session = current();
	if (session)
		atomic_fetch_or(&session->usage->slices[0].entries[session->slot].ties, tie);
}

uint32_t session_ties(void)
{
	struct session *session = current();
	return session ? (uint32_t)atomic_load(&session->usage->slices[0].entries[session->slot].ties)
	               : 0;
}

void session_count_inside(int64_t change)
{
	struct session *session = current();
	if (session)
		atomic_fetch_add(&session->usage->slices[0].entries[session->slot].ties,
		                 (uint64_t)change * ALIQUOT_INSIDE);
}

static void measure(struct session *session, int patience_ms, uint64_t held_for_context)
{
	bool answered = arbiter_measure(patience_ms, held_for_context);
	atomic_store(&session->measure_at_ns, now_ns() + (answered ? FRESH_NS : SILENCE_NS));
}

void session_measure(void)
{
	struct session *session = current();
	if (session)
		measure(session, MEASURE_MS, 0);
}

void session_measure_context(uint64_t held)
{
	struct session *session = current();
	if (session)
		measure(session, MEASURE_FIRST_MS, held);
}

void session_driver_allocated(void)
{
	struct session *session = current();
	if (session && now_ns() >= atomic_load(&session->measure_at_ns))
		measure(session, MEASURE_AGAIN_MS, 0);
}

bool session_exceeds_limit(uint32_t slice)
{
	struct session *session = current();
	const struct aliquot_slice_limits *limits = &session->limits->slices[slice];
	return ledger_total(&session->usage->slices[slice]) + limits->driver_bytes >
	       limits->limit_bytes;
}
