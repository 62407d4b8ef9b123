/* cuInit, and the ways in which a program finds the driver's functions. */
#define _GNU_SOURCE
#include "aliquot/lock.h"
#include "gate/gate.h"
#include "session.h"
#include "visible.h"

#include <stdlib.h>
#include <string.h>

#define VISIBLE "CUDA_VISIBLE_DEVICES"

const char forward_library[] = "libcuda.so.1";
const int forward_error_missing = CUDA_ERROR_NOT_SUPPORTED;
const int forward_error_no_library = CUDA_ERROR_NO_DEVICE;

static struct aliquot_lock first;
static _Atomic bool initialised; /* in this process or its parent */

/* The driver reads the variable once, here; the program's own value is put back. */
static CUresult init_with_our_devices(__typeof__(&cuInit) real, unsigned flags)
{
	char ours[VISIBLE_SIZE];
	const char *value = getenv(VISIBLE);
	char *theirs = value ? strdup(value) : NULL;
	visible_devices(session_limits(), theirs, getenv("CUDA_DEVICE_ORDER"), ours);
	setenv(VISIBLE, ours, 1);
	CUresult result = real(flags);
	if (theirs)
		setenv(VISIBLE, theirs, 1);
	else
		unsetenv(VISIBLE);
	free(theirs);
	return result;
}

CUresult hook_init(__typeof__(&cuInit) real, unsigned flags)
{
	/* Not the first call, or in a forked child: the driver answers. */
	if (atomic_load(&initialised) || flags != 0)
		return real(flags);
	if (!session_join())
		return CUDA_ERROR_SYSTEM_NOT_READY;
	CUresult result = CUDA_SUCCESS;
	aliquot_lock(&first);
	if (!initialised) {
		result = init_with_our_devices(real, flags);
		if (result == CUDA_SUCCESS && !session_open()) {
			forward_say("the driver shows a GPU that is not in the grant; ask: aliquot doctor");
			result = CUDA_ERROR_SYSTEM_NOT_READY;
		} else if (result == CUDA_SUCCESS) {
			gates_start();
			atomic_store(&initialised, true);
		}
	}
	aliquot_unlock(&first);
	return result;
}

/* The driver decides what a name, a version and flags mean. If it answers with a function that we
 * hook, the program gets the hook. */
CUresult hook_proc_address_v2(__typeof__(&cuGetProcAddress_v2) real, const char *symbol,
                              void **function, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *status)
{
	CUresult result = real(symbol, function, version, flags, status);
	if (result == CUDA_SUCCESS)
		*function = forward_substitute(*function);
	return result;
}

CUresult hook_proc_address(__typeof__(&cuGetProcAddress) real, const char *symbol, void **function,
                           int version, cuuint64_t flags)
{
	CUresult result = real(symbol, function, version, flags);
	if (result == CUDA_SUCCESS)
		*function = forward_substitute(*function);
	return result;
}
