/* A monitor sees the grant as the machine: its slices are the GPUs, counted from zero. */
#include "view.h"

const char forward_library[] = "libnvidia-ml.so.1";
const int forward_error_missing = NVML_ERROR_FUNCTION_NOT_FOUND;
const int forward_error_no_library = NVML_ERROR_LIBRARY_NOT_FOUND;

nvmlReturn_t hook_init(__typeof__(&nvmlInit_v2) real)
{
	return view_open() ? real() : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t hook_init_with_flags(__typeof__(&nvmlInitWithFlags) real, unsigned flags)
{
	return view_open() ? real(flags) : NVML_ERROR_DRIVER_NOT_LOADED;
}

nvmlReturn_t hook_count(__typeof__(&nvmlDeviceGetCount_v2) real, unsigned *count)
{
	nvmlReturn_t result = real(count);
	if (result == NVML_SUCCESS)
		*count = view_open() ? view_open()->limits->slice_count : 0;
	return result;
}

nvmlReturn_t hook_by_index(__typeof__(&nvmlDeviceGetHandleByIndex_v2) real, unsigned index,
                           nvmlDevice_t *device)
{
	const struct view *view = view_open();
	unsigned count;
	nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&count);
	if (result != NVML_SUCCESS || !device)
		return real(index, device);
	if (!view || index >= view->limits->slice_count)
		return NVML_ERROR_INVALID_ARGUMENT;
	return view_device(index, device);
}

nvmlReturn_t hook_by_text(__typeof__(&nvmlDeviceGetHandleByUUID) real, const char *text,
                          nvmlDevice_t *device)
{
	nvmlReturn_t result = real(text, device);
	if (result == NVML_SUCCESS && view_slice(*device) == VIEW_NO_SLICE)
		return NVML_ERROR_NOT_FOUND;
	return result;
}

nvmlReturn_t hook_by_uuid(__typeof__(&nvmlDeviceGetHandleByUUIDV) real, const nvmlUUID_t *uuid,
                          nvmlDevice_t *device)
{
	nvmlReturn_t result = real(uuid, device);
	if (result == NVML_SUCCESS && view_slice(*device) == VIEW_NO_SLICE)
		return NVML_ERROR_NOT_FOUND;
	return result;
}

nvmlReturn_t hook_index(__typeof__(&nvmlDeviceGetIndex) real, nvmlDevice_t device, unsigned *index)
{
	nvmlReturn_t result = real(device, index);
	if (result == NVML_SUCCESS)
		*index = view_slice(device);
	return result;
}

/* An instance of a GPU (MIG) is at its GPU's address, which the driver may say of the GPU alone. */
nvmlReturn_t hook_pci(__typeof__(&nvmlDeviceGetPciInfo_v3) real, nvmlDevice_t device,
                      nvmlPciInfo_t *pci)
{
	nvmlReturn_t result = real(device, pci);
	uint32_t slice = result == NVML_SUCCESS ? VIEW_NO_SLICE : view_slice(device);
	__typeof__(&nvmlDeviceGetDeviceHandleFromMigDeviceHandle) find_gpu = REAL(
		nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
	nvmlDevice_t gpu;
	if (slice == VIEW_NO_SLICE || !view_open()->limits->slices[slice].instance || !find_gpu ||
	    find_gpu(device, &gpu) != NVML_SUCCESS)
		return result;
	return real(gpu, pci);
}

FORWARD_EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
	forward_begin();
	__typeof__(&nvmlErrorString) real = REAL(nvmlErrorString);
	return real ? real(result) : "no NVIDIA management library was found";
}
