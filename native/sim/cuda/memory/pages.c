/* Pages of device memory.
 *
 * The bytes are in host memory that the kernel provides at the first write, so a simulated GPU of any
 * size costs nothing until a program uses its memory.
 */
#include "cuda/memory/memory.h"

#include <sys/mman.h>

uint64_t pages_round(uint64_t bytes, uint64_t unit)
{
	uint64_t up = bytes + unit - 1;
	return up < bytes ? UINT64_MAX : up / unit * unit;
}

void *pages_map(uint64_t size)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	char *map = mmap(NULL, size + SIM_PAGE, PROT_READ | PROT_WRITE, flags, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	char *base = (char *)pages_round((uint64_t)map, SIM_PAGE);
	if (base > map)
		munmap(map, (size_t)(base - map));
	if (base < map + SIM_PAGE)
		munmap(base + size, (size_t)(map + SIM_PAGE - base));
	madvise(base, size, MADV_DONTFORK);
	return base;
}

void *pages_map_low(uint64_t size)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
	for (uint64_t base = 1ull << 28; base + size <= 1ull << 32; base += SIM_PAGE) {
		void *map = mmap((void *)base, size, PROT_READ | PROT_WRITE, flags, -1, 0);
		if (map == (void *)base) {
			madvise(map, size, MADV_DONTFORK);
			return map;
		}
		if (map != MAP_FAILED)
			munmap(map, size);
	}
	return NULL;
}

void pages_unmap(uint64_t base, uint64_t size)
{
	munmap((void *)base, size);
}

CUresult pages_take(uint32_t gpu, uint64_t bytes)
{
	return machine_take(&sim.machine, gpu, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
