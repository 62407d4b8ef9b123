/* Locking another process and taking what it has off the GPUs: cuCheckpointProcess*.
 *
 * The model. A process's line in the machine's file says in which state it is, in how many calls of
 * the driver its threads are, and how much of what it asked for has not ended. To lock it is to say
 * so in its line and to wait until both are 0: a thread that comes in from then on waits until the
 * state is SIM_RUNNING again, one that was in before goes on, to its end. So a thread that waits for
 * a stream keeps no locker waiting for longer than the stream does. Calls that only look or wait
 * (SIM_ENTER_QUERY) come in whatever a locker does. The process does nothing for all this: whoever asks
 * changes its line.
 *
 * Guarantees: a call that is no look goes on only while the process is SIM_RUNNING, and a look gives
 * nothing back in a locked one, so what a locked process took of the GPUs does not change. Each step
 * is one change of a state under the file's lock: a caller that dies leaves the state before it or
 * the one after. One that dies while it waits leaves SIM_LOCKING, which is SIM_RUNNING for whoever
 * looks next, the process itself included. A process that dies leaves nothing (machine.h).
 *
 * As driver 580.159.04 does it on an H200: the states, steps and codes, without cuInit in the caller.
 * Queries and waits (cuStreamQuery, cuStreamSynchronize, cuEventQuery, cuEventSynchronize,
 * cuCtxSynchronize) answer in a locked process and are the program's end by SIGSEGV in a checkpointed
 * one, where cuMemGetInfo answers OPERATING_SYSTEM. A restore that finds no room answers
 * OUT_OF_MEMORY, and every later one OPERATING_SYSTEM: the process is lost. So is one that had
 * imported memory: it can be checkpointed, and its restore answers NOT_SUPPORTED. One that exported
 * comes back. One with managed memory is not checkpointed: NOT_SUPPORTED, and it stays locked.
 *
 * Where the card's driver differs: calls that only read what the process knows (cuCtxGetCurrent,
 * cuDeviceGetAttribute, cuDeviceTotalMem, cuPointerGetAttribute, cuStreamGetPriority,
 * cuDevicePrimaryCtxRetain) answer there in every state, and wait here; cuInit a second time waits
 * there, and answers here. It asks the process itself, so a stopped one (SIGSTOP) holds its caller up
 * without end; here nobody is asked. Exported memory that another has open stays on the card. Steps
 * take their time there: 1 s for 1 GiB and 12.5 s for 20 GiB to go, 0.44 s for 1 GiB to come back. IPC
 * handles, whose openers' restore answers INVALID_VALUE there, are not simulated. Not tried on a
 * card: several GPUs, which are as managed memory here; other GPUs for a restore, NOT_SUPPORTED; and
 * a second restore of one with imported memory, which answers as the first.
 */
#include "cuda/core/sim.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ROUND_NS 100000000l /* at most between a thread's looks at the state that it waits for */
#define PAUSE_MIN_NS 20000l /* between a locker's looks */
#define PAUSE_MAX_NS 1000000l

static void set_state(struct sim_process *p, enum sim_process_state state)
{
	__atomic_store_n(&p->state, state, __ATOMIC_SEQ_CST);
	word_wake(&p->state, INT_MAX);
}

/* Ends the locking that a dead process began. Precondition: the file's lock is held. */
static void settle(struct sim_process *p)
{
	if (p->state == SIM_LOCKING && !machine_lives(&sim.machine, p->locker))
		set_state(p, SIM_RUNNING);
}

static void wait_for_change(uint32_t seen)
{
	if (seen == SIM_LOCKING) {
		machine_lock(&sim.machine);
		settle(sim_self());
		machine_unlock(&sim.machine);
	}
	word_wait(&sim_self()->state, seen, ROUND_NS);
}

/* The call counts before the state is looked at, and a locker looks at the count after it changed
 * the state: one of the two sees the other. */
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
	/* All that change it hold the driver's lock. */
	__atomic_store_n(&sim_self()->calls, sim_self()->calls - 1, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&sim.lock);
}

/* For a call that has come in: one that did so before the lock keeps the locker waiting. */
bool sim_is_locked(void)
{
	uint32_t state = __atomic_load_n(&sim_self()->state, __ATOMIC_SEQ_CST);
	return state == SIM_LOCKED || state == SIM_CHECKPOINTED;
}

/* Whatever the program does with the signal: it would not live on with the card's driver. */
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

/* The line of a process, with the file's lock held; else an error, and it is not held. */
static CUresult begin(int pid, struct sim_process **p)
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
	settle(*p);
	return CUDA_SUCCESS;
}

static CUresult end(CUresult result)
{
	machine_unlock(&sim.machine);
	return result;
}

CUresult cuCheckpointProcessGetState(int pid, CUprocessState *state)
{
	struct sim_process *p;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(begin(pid, &p));
	*state = p->state == SIM_LOCKING ? CU_PROCESS_STATE_RUNNING : (CUprocessState)p->state;
	return end(CUDA_SUCCESS);
}

/* The worker, if it goes by its number here too; else the main thread. */
CUresult cuCheckpointProcessGetRestoreThreadId(int pid, int *tid)
{
	struct sim_process *p;
	char path[64];
	if (!tid)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(begin(pid, &p));
	int worker = __atomic_load_n(&p->worker, __ATOMIC_RELAXED);
	snprintf(path, sizeof(path), "/proc/%d/task/%d", pid, worker);
	*tid = worker && !access(path, F_OK) ? worker : pid;
	return end(CUDA_SUCCESS);
}

/* One look of a locker: NOT_READY while the process has something to do, or another locks it.
 * *asked: it is ours to lock. */
static CUresult look(struct sim_process *p, bool *asked)
{
	uint32_t me = sim.machine.ticket;
	if (!*asked && p->state == SIM_LOCKING)
		return CUDA_ERROR_NOT_READY;
	if (!*asked && p->state == SIM_RUNNING) {
		p->locker = me;
		set_state(p, SIM_LOCKING);
		*asked = true;
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
	bool asked = false, over = false;
	if (args && (args->reserved0 || !is_zero(args->reserved1, sizeof(args->reserved1))))
		return CUDA_ERROR_INVALID_VALUE;
	if (args && args->timeoutMs)
		until = machine_now() + args->timeoutMs * 1000000ull;
	for (struct timespec pause = {.tv_nsec = PAUSE_MIN_NS};;) {
		struct sim_process *p;
		SIM_TRY(begin(pid, &p));
		CUresult result = look(p, &asked);
		over = result == CUDA_ERROR_NOT_READY && machine_now() >= until;
		if (over && asked)
			set_state(p, SIM_RUNNING);
		machine_unlock(&sim.machine);
		if (result != CUDA_ERROR_NOT_READY || over)
			return result;
		nanosleep(&pause, NULL);
		pause.tv_nsec = 2 * pause.tv_nsec < PAUSE_MAX_NS ? 2 * pause.tv_nsec : PAUSE_MAX_NS;
	}
}

/* Whether a process has what cannot be taken off the GPUs. What it imported is found out later. */
static bool is_tied(const struct sim_process *p)
{
	uint32_t gpus = 0;
	for (uint32_t g = 0; g < sim.machine.map->count; g++)
		gpus += p->parts[g].contexts || p->parts[g].bytes;
	return p->managed || gpus > 1;
}

CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args)
{
	struct sim_process *p;
	if (args && !is_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(begin(pid, &p));
	if (p->state != SIM_LOCKED)
		return end(CUDA_ERROR_ILLEGAL_STATE);
	if (is_tied(p))
		return end(CUDA_ERROR_NOT_SUPPORTED);
	machine_take_off(&sim.machine, p);
	return end(CUDA_SUCCESS);
}

static CUresult bring_back(struct sim_process *p)
{
	if (p->lost)
		return CUDA_ERROR_OPERATING_SYSTEM;
	if (p->imported)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (machine_bring_back(&sim.machine, p))
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
	SIM_TRY(begin(pid, &p));
	if (p->state != SIM_CHECKPOINTED)
		return end(CUDA_ERROR_ILLEGAL_STATE);
	if (args && args->gpuPairsCount)
		return end(CUDA_ERROR_NOT_SUPPORTED);
	return end(bring_back(p));
}

CUresult cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args)
{
	struct sim_process *p;
	if (args && !is_zero(args, sizeof(*args)))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(begin(pid, &p));
	if (p->state != SIM_LOCKED)
		return end(CUDA_ERROR_ILLEGAL_STATE);
	set_state(p, SIM_RUNNING);
	return end(CUDA_SUCCESS);
}
