/* Locking another process and taking its memory off the GPUs: cuCheckpointProcess*.
 *
 * The model. A process's entry in the machine's file has its state, the number of driver calls that its
 * threads are in, and the number of its operations that have not ended. A locker sets the state to
 * SIM_LOCKING and waits until both numbers are 0. A thread that enters the driver from then on waits
 * until the state is SIM_RUNNING again; a call that entered before continues to its end. So a thread that
 * waits for a stream delays the locker no longer than the stream itself does. Calls that only query or
 * wait (SIM_ENTER_QUERY) enter whatever the state. The process takes no part in this: the caller changes
 * the entry.
 *
 * Guarantees: a call that is not a query continues only while the process is SIM_RUNNING, and a query in
 * a locked process gives no memory back. So what a locked process uses of the GPUs does not change. Each
 * step is one change of the state under the file's lock: a caller that dies leaves the state before or
 * the state after it. A locker that dies while it waits leaves SIM_LOCKING, which the next process that
 * looks, or the locked process itself, turns into SIM_RUNNING. A process that dies leaves nothing
 * (machine/machine.h).
 *
 * The same as driver 580.159.04 on an H200: the states, steps and error codes, and that the caller needs
 * no cuInit. Queries and waits (cuStreamQuery, cuStreamSynchronize, cuEventQuery, cuEventSynchronize,
 * cuCtxSynchronize) work in a locked process and end a checkpointed one by SIGSEGV; cuMemGetInfo returns
 * OPERATING_SYSTEM there. A restore without enough free memory returns OUT_OF_MEMORY, and every later one
 * OPERATING_SYSTEM: the process is lost. A process with imported memory can be checkpointed, but its
 * restore returns NOT_SUPPORTED. A process that exported memory can be restored. A process with managed
 * memory cannot be checkpointed: the call returns NOT_SUPPORTED, and the process stays locked.
 *
 * Different from NVIDIA's driver:
 *   - There, calls that only read state of the process (cuCtxGetCurrent, cuDeviceGetAttribute,
 *     cuDeviceTotalMem, cuPointerGetAttribute, cuStreamGetPriority, cuDevicePrimaryCtxRetain) return in
 *     every state; here they wait. There, a second cuInit waits; here it returns.
 *   - There, the process itself does the work, so a stopped process (SIGSTOP) blocks its caller.
 *   - There, exported memory that another process has open stays on the GPU.
 *   - There, the steps take time: 1 s to checkpoint 1 GiB, 12.5 s for 20 GiB, 0.44 s to restore 1 GiB.
 *   - IPC handles are not simulated. There, the restore of a process that opened one returns
 *     INVALID_VALUE.
 *   - Not tried on a real GPU: processes on several GPUs (here treated like managed memory), a restore
 *     on other GPUs (here NOT_SUPPORTED), and a second restore of a process with imported memory (here
 *     the same result as the first).
 */
#include "cuda/core/sim.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ROUND_NS 100000000l /* at most between two looks of a thread that waits for a state */
#define PAUSE_MIN_NS 20000l /* between two looks of a locker */
#define PAUSE_MAX_NS 1000000l

static void set_state(struct sim_process *p, enum sim_process_state state)
{
	__atomic_store_n(&p->state, state, __ATOMIC_SEQ_CST);
	futex_wake(&p->state, INT_MAX);
}

/* Ends a locking that a dead process began. Precondition: the file's lock is held. */
static void end_dead_locking(struct sim_process *p)
{
	if (p->state == SIM_LOCKING && !machine_ticket_lives(&sim.machine, p->locker))
		set_state(p, SIM_RUNNING);
}

static void wait_for_change(uint32_t seen)
{
	if (seen == SIM_LOCKING) {
		machine_lock(&sim.machine);
		end_dead_locking(sim_self());
		machine_unlock(&sim.machine);
	}
	futex_wait(&sim_self()->state, seen, ROUND_NS);
}

/* A call adds itself to `calls` before it reads the state; a locker changes the state before it reads
 * `calls`. So at least one of the two sees the other. */
void sim_enter(void)
{
	for (;;) {
		pthread_mutex_lock(&sim.lock);
		__atomic_add_fetch(&sim_self()->calls, 1, __ATOMIC_SEQ_CST);
		uint32_t seen = __atomic_load_n(&sim_self()->state, __ATOMIC_SEQ_CST);
		if (seen == SIM_RUNNING)
			return;
		sim_leave(NULL);
		wait_for_change(seen);
	}
}

bool sim_enter_query(void)
{
	pthread_mutex_lock(&sim.lock);
	__atomic_add_fetch(&sim_self()->calls, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&sim_self()->state, __ATOMIC_SEQ_CST) != SIM_CHECKPOINTED)
		return true;
	sim_leave(NULL);
	return false;
}

void sim_leave(int *guard)
{
	(void)guard;
	/* A thread that changes `calls` holds the driver's lock. */
	__atomic_store_n(&sim_self()->calls, sim_self()->calls - 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&sim.lock);
}

/* For a call that has entered: if it entered before the locker, the locker still waits for it. */
bool sim_is_locked(void)
{
	uint32_t state = __atomic_load_n(&sim_self()->state, __ATOMIC_SEQ_CST);
	return state == SIM_LOCKED || state == SIM_CHECKPOINTED;
}

/* The program ends whatever handler it has, since it would not survive with NVIDIA's driver. */
void sim_crash(const char *call)
{
	sigset_t fault;
	dprintf(STDERR_FILENO, "aliquot: simulated driver: %s in a checkpointed process: SIGSEGV\n",
	        call);
	sigemptyset(&fault);
	sigaddset(&fault, SIGSEGV);
	signal(SIGSEGV, SIG_DFL);
	pthread_sigmask(SIG_UNBLOCK, &fault, NULL);
	raise(SIGSEGV);
	abort();
}

static bool is_zero(const void *bytes, size_t size)
{
	for (const char *at = bytes, *end = at + size; at < end; at++)
		if (*at)
			return false;
	return true;
}

/* Finds the entry of a process and takes the file's lock; on an error the lock is not held. */
static CUresult lock_entry(int pid, struct sim_process **p)
{
	SIM_TRY(sim_find_machine());
	if (sim.without_checkpoint)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (pid <= 0 || (kill(pid, 0) && errno == ESRCH))
		return CUDA_ERROR_OPERATING_SYSTEM;
	machine_lock(&sim.machine);
	uint32_t slot = machine_find(&sim.machine, pid);
	if (slot == SIM_NONE) {
		machine_unlock(&sim.machine);
		return CUDA_ERROR_NOT_INITIALIZED;
	}
	*p = &sim.machine.map->processes[slot];
	end_dead_locking(*p);
	return CUDA_SUCCESS;
}

static CUresult unlock_and_return(CUresult result)
{
	machine_unlock(&sim.machine);
	return result;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct sim_process *p;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(lock_entry(pid, &p));
	*state = p->state == SIM_LOCKING ? CU_PROCESS_STATE_RUNNING : (CUprocessState)p->state;
	return unlock_and_return(CUDA_SUCCESS);
}

/* The worker, if its thread id is valid in this pid namespace too; else the main thread. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct sim_process *p;
	char path[64];
	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(lock_entry(pid, &p));
	int worker = __atomic_load_n(&p->worker, __ATOMIC_RELAXED);
	snprintf(path, sizeof(path), "/proc/%d/task/%d", pid, worker);
	*tid = worker && !access(path, F_OK) ? worker : pid;
	return unlock_and_return(CUDA_SUCCESS);
}

/* One attempt of a locker: NOT_READY while the process has work or calls, or another process locks it.
 * *ours: this caller is the locker. */
static CUresult try_lock(struct sim_process *p, bool *ours)
{
	uint32_t me = sim.machine.ticket;
	if (!*ours && p->state == SIM_LOCKING)
		return CUDA_ERROR_NOT_READY;
	if (!*ours && p->state == SIM_RUNNING) {
		p->locker = me;
		set_state(p, SIM_LOCKING);
		*ours = true;
	}
	if (p->state != SIM_LOCKING || p->locker != me)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (__atomic_load_n(&p->calls, __ATOMIC_SEQ_CST) || __atomic_load_n(&p->work, __ATOMIC_SEQ_CST))
		return CUDA_ERROR_NOT_READY;
	set_state(p, SIM_LOCKED);
	return CUDA_SUCCESS;
}

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args)
{
	uint64_t until = SIM_NEVER;
	bool ours = false, over = false;
	if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof(args->reserved1))))
		return CUDA_ERROR_INVALID_VALUE;
	if (args && args->timeoutMs)
		until = machine_now() + args->timeoutMs * 1000000ull;
	for (struct timespec pause = {.tv_nsec = PAUSE_MIN_NS};;) {
		struct sim_process *p;
		SIM_TRY(lock_entry(pid, &p));
		CUresult result = try_lock(p, &ours);
		over = result == CUDA_ERROR_NOT_READY && machine_now() >= until;
		if (over && ours)
			set_state(p, SIM_RUNNING);
		machine_unlock(&sim.machine);
		if (result != CUDA_ERROR_NOT_READY || over)
			return result;
		nanosleep(&pause, NULL);
		pause.tv_nsec = 2 * pause.tv_nsec < PAUSE_MAX_NS ? 2 * pause.tv_nsec : PAUSE_MAX_NS;
	}
}

/* Whether a process has memory that cannot be taken off the GPUs. Imported memory only prevents the
 * restore. */
static bool is_tied(const struct sim_process *p)
{
	uint32_t gpus = 0;
	for (uint32_t g = 0; g < machine_units(sim.machine.map); g++)
		gpus += p->usage[g].contexts || p->usage[g].bytes;
	return p->managed || gpus > 1;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	struct sim_process *p;
	if (args && !is_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(lock_entry(pid, &p));
	if (p->state != SIM_LOCKED)
		return unlock_and_return(CUDA_ERROR_ILLEGAL_STATE);
	if (is_tied(p))
		return unlock_and_return(CUDA_ERROR_NOT_SUPPORTED);
	machine_checkpoint(&sim.machine, p);
	return unlock_and_return(CUDA_SUCCESS);
}

static CUresult restore(struct sim_process *p)
{
	if (p->lost)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (p->imported)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (machine_restore(&sim.machine, p))
		return CUDA_SUCCESS;
	p->lost = 1;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args)
{
	struct sim_process *p;
	if (args && (args->customStorageInfo_out || !is_zero(args->reserved, sizeof(args->reserved)) ||
	             (args->gpuPairsCount && !args->gpuPairs)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(lock_entry(pid, &p));
	if (p->state != SIM_CHECKPOINTED)
		return unlock_and_return(CUDA_ERROR_ILLEGAL_STATE);
	if (args && args->gpuPairsCount)
		return unlock_and_return(CUDA_ERROR_NOT_SUPPORTED);
	return unlock_and_return(restore(p));
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	struct sim_process *p;
	if (args && !is_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(lock_entry(pid, &p));
	if (p->state != SIM_LOCKED)
		return unlock_and_return(CUDA_ERROR_ILLEGAL_STATE);
	set_state(p, SIM_RUNNING);
	return unlock_and_return(CUDA_SUCCESS);
}
