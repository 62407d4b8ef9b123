#define _GNU_SOURCE
#include "gate/pages.h"

#include "session.h"

#include <sys/mman.h>

/* Another mapping of the same pages: an old size of 0 asks for that, and needs no descriptor. */
static void *map_again(const void *page, size_t size)
{
	void *mapping = mremap((void *)page, 0, size, MREMAP_MAYMOVE);
	return mapping == MAP_FAILED ? NULL : mapping;
}

void gate_unmap_pages(struct gate_context *context)
{
	if (context->credit_mapping)
		munmap((void *)context->credit_mapping, ALIQUOT_CREDIT_SIZE);
	if (context->work_mapping)
		munmap(context->work_mapping, ALIQUOT_WORK_SIZE);
	context->credit_mapping = context->work_mapping = NULL;
}

static CUresult register_page(const void *page, size_t size, unsigned flags, CUdeviceptr *device)
{
	if (!page)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = REAL(cuMemHostRegister_v2)((void *)page, size, flags);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemHostGetDevicePointer_v2)(device, (void *)page, 0);
	if (result != CUDA_SUCCESS)
		REAL(cuMemHostUnregister)((void *)page);
	return result;
}

CUresult gate_map_pages(struct gate_context *context)
{
	const struct gate *gate = context->gate;
	CUdeviceptr credit, work;
	context->credit_mapping = map_again(session_credit(), ALIQUOT_CREDIT_SIZE);
	context->work_mapping = map_again(gate->work, ALIQUOT_WORK_SIZE);
	CUresult result = register_page(context->credit_mapping, ALIQUOT_CREDIT_SIZE,
	                                CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY,
	                                &credit);
	if (result == CUDA_SUCCESS) {
		result = register_page(context->work_mapping, ALIQUOT_WORK_SIZE,
		                       CU_MEMHOSTREGISTER_DEVICEMAP, &work);
		if (result != CUDA_SUCCESS)
			REAL(cuMemHostUnregister)((void *)context->credit_mapping);
	}
	if (result != CUDA_SUCCESS) {
		gate_unmap_pages(context);
		return result;
	}
	context->credit_word = credit + (CUdeviceptr)offsetof(struct aliquot_credit, slices) +
	                       gate->index * sizeof(struct aliquot_credit_slice) +
	                       offsetof(struct aliquot_credit_slice, credit);
	context->marks = work + offsetof(struct aliquot_work_slice, marks);
	return CUDA_SUCCESS;
}
