/* cuGetProcAddress: how a program asks the driver for its functions. */
#include "hooked.h"

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
