/* cuInit: the first call of every program, which joins the grant and opens the session.
 *
 * Several threads may be in it at once, as in the driver's, and each takes all steps; no lock is held
 * across the driver's cuInit, which may take seconds and load tools that call cuInit themselves.
 *
 * Forks. A child has no session, and its locks are free (session.h). If it was forked while another
 * thread was inside the driver's cuInit, a lock of the driver may be taken in it for ever: so the
 * child does not enter it, and gets the answer that a driver gives to a forked child. */
#define _GNU_SOURCE
#include "aliquot/lock.h"
#include "cancel.h"
#include "environment.h"
#include "gate/gate.h"
#include "session.h"
#include "swap/residence.h"
#include "visible.h"

#include <stdlib.h>

const char forward_library[] = "libcuda.so.1";
const int forward_error_missing = CUDA_ERROR_NOT_SUPPORTED;
const int forward_error_no_library = CUDA_ERROR_NO_DEVICE;

/* This process's threads in hook_init; a fork wipes it. */
struct init {
	struct aliquot_lock lock; /* over the environment's change and the start of the gates */
	unsigned inside;          /* from before they change the environment until it is restored */
};

static void *_Atomic page;
/* These two survive a fork. */
static _Atomic unsigned in_driver; /* threads inside the driver's cuInit */
static _Atomic bool initialised;

/* False: this process was forked while a thread of its parent was in the driver's cuInit. */
static bool enter(struct init *init)
{
	aliquot_lock(&init->lock);
	bool is_whole = init->inside || !atomic_load(&in_driver);
	if (is_whole && init->inside++ == 0) {
		char ours[VISIBLE_SIZE];
		environment_restore(); /* a child may have its parent's change */
		visible_devices(session_limits(), getenv(ENVIRONMENT_VISIBLE), getenv("CUDA_DEVICE_ORDER"),
		                ours);
		environment_show(ours);
	}
	aliquot_unlock(&init->lock);
	return is_whole;
}

static void leave(struct init *init)
{
	aliquot_lock(&init->lock);
	if (--init->inside == 0)
		environment_restore();
	aliquot_unlock(&init->lock);
}

static CUresult open_session(struct init *init)
{
	if (!session_open()) {
		forward_say("the driver shows a GPU that is not in the grant; ask: aliquot doctor");
		return CUDA_ERROR_SYSTEM_NOT_READY;
	}
	aliquot_lock(&init->lock);
	if (!initialised) {
		gates_start();
		residence_start();
	}
	atomic_store(&initialised, true);
	aliquot_unlock(&init->lock);
	return CUDA_SUCCESS;
}

/* The driver's library and the kernel's driver are of different releases. */
static bool is_mismatch(CUresult result)
{
	return result == CUDA_ERROR_SYSTEM_DRIVER_MISMATCH ||
	       result == CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE;
}

/* Precondition: the session is joined. */
static CUresult start(__typeof__(&cuInit) real, struct init *init)
{
	if (!enter(init))
		return CUDA_ERROR_NOT_INITIALIZED;
	/* The driver reads the environment once, here. */
	atomic_fetch_add(&in_driver, 1);
	CUresult result = real(0);
	atomic_fetch_sub(&in_driver, 1);
	leave(init);
	if (is_mismatch(result))
		forward_say("%s does not fit this machine's GPU or kernel driver (CUDA error %d): take its "
		            "folder out of LD_LIBRARY_PATH, or install one that fits",
		            forward_file, (int)result);
	return result == CUDA_SUCCESS ? open_session(init) : result;
}

CUresult hook_init(__typeof__(&cuInit) real, unsigned flags)
{
	/* Not the first call, or in a forked child: the driver answers. */
	if (atomic_load(&initialised) || flags != 0)
		return real(flags);
	struct init *init = session_wiped_memory(&page, sizeof(*init));
	if (!init || !session_join())
		return CUDA_ERROR_SYSTEM_NOT_READY;
	int cancel = cancel_disable();
	CUresult result = start(real, init);
	cancel_restore(cancel);
	return result;
}
