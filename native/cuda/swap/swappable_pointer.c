/* What the program asks about its pointers. The driver answers about the shadow; what depends on the
 * address or the size is set right here. */
#include "places.h"

#include <string.h>

static void put(void *out, uint64_t value, size_t size)
{
	memcpy(out, &value, size);
}

/* The driver has told an attribute of the shadow: make it the pointer's. */
static void correct(void *out, CUpointer_attribute which, CUdeviceptr pointer,
                    const struct place *view)
{
	switch ((int)which) {
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		put(out, pointer, sizeof(pointer));
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		put(out, view->base, sizeof(view->base));
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		put(out, view->bytes, sizeof(view->bytes));
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		put(out, view->piece, sizeof(view->piece));
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		put(out, view->piece_bytes, sizeof(view->piece_bytes));
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		put(out, places_block_id(view->piece), sizeof(uint64_t));
		break;
	/* Other devices must not pin memory that leaves; the other is not made so. */
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		put(out, false, sizeof(bool));
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		if (view->is_on_host)
			put(out, false, sizeof(bool));
		break;
	default:
		break;
	}
}

CUresult hook_pointer_attribute(__typeof__(&cuPointerGetAttribute) real, void *out,
                                CUpointer_attribute which, CUdeviceptr pointer)
{
	struct place view;
	if (!places_find(pointer, &view))
		return real(out, which, places_driver_address(pointer));
	CUresult result = real(out, which, view.shadow);
	if (result == CUDA_SUCCESS)
		correct(out, which, pointer, &view);
	return result;
}

CUresult hook_pointer_attributes(__typeof__(&cuPointerGetAttributes) real, unsigned count,
                                 CUpointer_attribute *which, void **out, CUdeviceptr pointer)
{
	struct place view;
	if (!places_find(pointer, &view))
		return real(count, which, out, places_driver_address(pointer));
	CUresult result = real(count, which, out, view.shadow);
	for (unsigned i = 0; result == CUDA_SUCCESS && i < count; i++)
		correct(out[i], which[i], pointer, &view);
	return result;
}

CUresult hook_pointer_set_attribute(__typeof__(&cuPointerSetAttribute) real, const void *value,
                                    CUpointer_attribute which, CUdeviceptr pointer)
{
	return real(value, which, places_driver_address(pointer));
}

CUresult hook_address_range(__typeof__(&cuMemGetAddressRange_v2) real, CUdeviceptr *base,
                            size_t *bytes, CUdeviceptr pointer)
{
	struct place view;
	if (!places_find(pointer, &view))
		return real(base, bytes, places_driver_address(pointer));
	CUresult result = real(base, bytes, view.shadow);
	if (result == CUDA_SUCCESS && base)
		*base = view.base;
	if (result == CUDA_SUCCESS && bytes)
		*bytes = view.bytes;
	return result;
}

/* --- calls that are for reserved addresses ------------------------------------------------------ */

CUresult hook_set_access(__typeof__(&cuMemSetAccess) real, CUdeviceptr address, size_t bytes,
                         const CUmemAccessDesc *access, size_t count)
{
	return real(places_driver_address(address), bytes, access, count);
}

CUresult hook_get_access(__typeof__(&cuMemGetAccess) real, unsigned long long *flags,
                         const CUmemLocation *location, CUdeviceptr address)
{
	return real(flags, location, places_driver_address(address));
}

CUresult hook_address_free(__typeof__(&cuMemAddressFree) real, CUdeviceptr address, size_t bytes)
{
	return real(places_driver_address(address), bytes);
}
