/* At the first handle of its pages, an allocation's bytes move into a file in memory (memfd), which other
 * processes map. A handle says where that file is: the exporting process and its descriptor. Small
 * allocations share a page, and a process that opens one of them maps the whole page, as with the real driver.
 */
#include "cuda/memory/ipc.h"

#include "cuda/stream/stream.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAGIC 0x4350494d4953ull /* "SIMIPC" */
#define PIECE 4096u

/* Pages of this process that have a handle. */
struct exported {
	uint64_t base, bytes, share;
	int fd;
	struct exported *next;
};

/* Pages of another process. */
struct opened {
	uint64_t share;
	uint32_t times; /* opened and not closed */
	struct opened *next;
	uint64_t base;
};

struct handle {
	uint64_t magic, share, bytes, offset;
	int32_t pid, fd;
	uint32_t gpu, reserved;
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle fits");

static struct exported *exports;
static struct opened *opens;

static struct exported *find_export(uint64_t base)
{
	struct exported *one = exports;
	while (one && one->base != base)
		one = one->next;
	return one;
}

/* Moves the bytes of the pages into the file, and maps it in their place. */
static bool move(struct exported *to)
{
	static const char zeros[PIECE];
	for (uint64_t at = 0; at < to->bytes; at += PIECE) {
		const char *piece = (const char *)to->base + at;
		if (memcmp(piece, zeros, PIECE) && pwrite(to->fd, piece, PIECE, (off_t)at) != PIECE)
			return false;
	}
	void *map = mmap((void *)to->base, to->bytes, PROT_READ | PROT_WRITE,
	                 MAP_SHARED | MAP_FIXED | MAP_NORESERVE, to->fd, 0);
	if (map == MAP_FAILED)
		return false;
	madvise(map, to->bytes, MADV_DONTFORK);
	return true;
}

static struct exported *export(uint32_t gpu, uint64_t base, uint64_t bytes)
{
	struct exported *one = find_export(base);
	if (one || !(one = calloc(1, sizeof(*one))))
		return one;
	*one = (struct exported){.base = base, .bytes = bytes, .next = exports};
	one->fd = memfd_create("aliquot-simulated-ipc", MFD_CLOEXEC);
	if (one->fd >= 0 && !ftruncate(one->fd, (off_t)bytes) && move(one) &&
	    (one->share = machine_share(&sim.machine, gpu, bytes)))
		return exports = one;
	if (one->fd >= 0)
		close(one->fd);
	free(one);
	return NULL;
}

void ipc_give(uint32_t gpu, uint64_t base, uint64_t bytes)
{
	struct exported **at = &exports;
	while (*at && (*at)->base != base)
		at = &(*at)->next;
	struct exported *one = *at;
	if (!one) {
		machine_give(&sim.machine, gpu, bytes);
		return;
	}
	*at = one->next;
	machine_leave(&sim.machine, one->share);
	close(one->fd);
	free(one);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address)
{
	SIM_ENTER();
	const struct sim_range *range = range_find(address);
	if (!out || !range || (range->memory != SIM_DEVICE && range->memory != SIM_SMALL))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(context_wait(range->context));
	range = range_find(address);
	if (!range)
		return CUDA_ERROR_INVALID_VALUE;
	uint64_t base = range->memory == SIM_SMALL ? range->base / SIM_PAGE * SIM_PAGE : range->base;
	uint64_t bytes = range->memory == SIM_SMALL ? SIM_PAGE : range->taken;
	const struct exported *one = export(range->gpu, base, bytes);
	if (!one)
		return CUDA_ERROR_OUT_OF_MEMORY;
	struct handle handle = {.magic = MAGIC,
	                        .share = one->share,
	                        .bytes = bytes,
	                        .offset = range->base - base,
	                        .pid = getpid(),
	                        .fd = one->fd,
	                        .gpu = range->gpu};
	memset(out, 0, sizeof(*out));
	memcpy(out, &handle, sizeof(handle));
	return CUDA_SUCCESS;
}

static void release_opened(const struct sim_range *range)
{
	struct opened **at = &opens;
	while (*at != range->owner)
		at = &(*at)->next;
	struct opened *one = *at;
	*at = one->next;
	munmap((void *)range->base, range->size);
	machine_leave(&sim.machine, one->share);
	sim_self()->imported--;
	free(one);
}

static CUresult open_pages(struct sim_context *context, const struct handle *handle, uint64_t *base)
{
	char path[64];
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
	struct opened *one = calloc(1, sizeof(*one));
	int fd = one ? open(path, O_RDWR | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED
	                   : mmap(NULL, handle->bytes, PROT_READ | PROT_WRITE,
	                          MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (fd >= 0)
		close(fd);
	if (map == MAP_FAILED ||
	    !machine_join(&sim.machine, handle->share, handle->gpu, handle->bytes)) {
		if (map != MAP_FAILED)
			munmap(map, handle->bytes);
		free(one);
		return CUDA_ERROR_INVALID_VALUE;
	}
	madvise(map, handle->bytes, MADV_DONTFORK);
	*one = (struct opened){.share = handle->share,
	                       .times = 1,
	                       .next = opens,
	                       .base = (uint64_t)map};
	opens = one;
	sim_self()->imported++;
	struct sim_range range = {.base = one->base,
	                          .size = handle->bytes,
	                          .memory = SIM_GLOBAL,
	                          .context = context,
	                          .gpu = handle->gpu,
	                          .owner = one,
	                          .release = release_opened};
	range_add(&range);
	*base = one->base;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *address, CUipcMemHandle bytes, unsigned int flags)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	struct handle handle;
	memcpy(&handle, &bytes, sizeof(handle));
	if (!address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || handle.magic != MAGIC)
		return CUDA_ERROR_INVALID_VALUE;
	if (handle.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	struct opened *one = opens;
	while (one && one->share != handle.share)
		one = one->next;
	uint64_t base = one ? one->base : 0;
	if (one)
		one->times++;
	else
		SIM_TRY(open_pages(context, &handle, &base));
	*address = base + handle.offset;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle bytes, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(address, bytes, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	SIM_ENTER();
	struct sim_range *range = range_find(address);
	if (!range || range->release != release_opened)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(context_wait(range->context));
	range = range_find(address);
	struct opened *one = range ? range->owner : NULL;
	if (one && --one->times == 0)
		range_free(range);
	return CUDA_SUCCESS;
}

/* A file that stands for the range: here nobody can use it, and it holds no memory. */
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr address, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags)
{
	SIM_ENTER();
	if (!handle || !size || size % PIECE || address % PIECE ||
	    type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || !range_find(address))
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)handle = memfd_create("aliquot-simulated-dmabuf", MFD_CLOEXEC);
	return *(int *)handle < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}
