/* cuGetProcAddress: how a program asks the driver for its functions. */
#include "hooked.h"
#include "swap/prefer.h"

#include <string.h>

/* A function of ours that programs may ask for. */
static bool is_ours(const char *symbol, void **function)
{
	bool ours = symbol && function && !strcmp(symbol, PREFER_NAME);
	if (ours)
		*function = (void *)prefer_on_gpu;
	return ours;
}

/* The driver decides what a name, a version and flags mean. If it answers with a function that we
 * hook, the program gets the hook. */
CUresult hook_proc_address_v2(__typeof__(&cuGetProcAddress_v2) real, const char *symbol,
                              void **function, int version, cuuint64_t flags,
                              CUdriverProcAddressQueryResult *status)
{
	if (is_ours(symbol, function)) {
		if (status)
			*status = CU_GET_PROC_ADDRESS_SUCCESS;
		return CUDA_SUCCESS;
	}
	CUresult result = real(symbol, function, version, flags, status);
	if (result == CUDA_SUCCESS)
		*function = forward_substitute(*function);
	return result;
}

CUresult hook_proc_address(__typeof__(&cuGetProcAddress) real, const char *symbol, void **function,
                           int version, cuuint64_t flags)
{
	if (is_ours(symbol, function))
		return CUDA_SUCCESS;
	CUresult result = real(symbol, function, version, flags);
	if (result == CUDA_SUCCESS)
		*function = forward_substitute(*function);
	return result;
}
