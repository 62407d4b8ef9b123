#include "spill.h"

#include "aliquot/host.h"
#include "page.h"
#include "session.h"

#include <stdatomic.h>

bool spill_is_on(void)
{
	return spill_total_bytes() != 0;
}

uint64_t spill_total_bytes(void)
{
	return aliquot_limits_spill(session_limits());
}

static uint64_t host_room(void)
{
	struct aliquot_host host = aliquot_host_read();
	return aliquot_host_room(&host);
}

bool spill_host_has(uint64_t bytes)
{
	return bytes <= host_room();
}

uint64_t spill_free_bytes(void)
{
	uint64_t granted = spill_is_on() ? session_free_bytes(ALIQUOT_HOST_SLICE) : 0;
	uint64_t room = granted ? host_room() : 0;
	return granted < room ? granted : room;
}

/* --- the spare --------------------------------------------------------------------------------- */

static _Atomic bool spare;
static _Atomic uint32_t spare_slice;
static _Atomic int pieces_on_host;

void spill_fill_spare(uint32_t slice)
{
	if (atomic_load(&spare) || !session_reserve(slice, PAGE_BYTES))
		return;
	atomic_store(&spare_slice, slice);
	if (atomic_exchange(&spare, true))
		session_release(slice, PAGE_BYTES); /* another thread was faster */
}

bool spill_take_spare(void)
{
	return atomic_exchange(&spare, false);
}

void spill_return_spare(void)
{
	if (atomic_exchange(&spare, true))
		session_release(atomic_load(&spare_slice), PAGE_BYTES); /* there is a new one */
}

void spill_count_pieces(int change)
{
	if (atomic_fetch_add(&pieces_on_host, change) + change <= 0 && spill_take_spare())
		session_release(atomic_load(&spare_slice), PAGE_BYTES);
}

CUmemAllocationProp spill_properties(CUdevice device)
{
	int node = 0;
	if (REAL(cuDeviceGetAttribute)(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) !=
	        CUDA_SUCCESS ||
	    node < 0)
		node = 0;
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node},
	};
}

CUresult spill_answer(CUresult result)
{
	static _Atomic bool said;
	if (result == CUDA_SUCCESS) {
		session_tie(ALIQUOT_TIE_HOST);
		return result;
	}
	if (result != CUDA_ERROR_OUT_OF_MEMORY && !atomic_exchange(&said, true))
		forward_say(
			"this driver does not map memory of the host on the GPU: --spill has no effect");
	return CUDA_ERROR_OUT_OF_MEMORY;
}
