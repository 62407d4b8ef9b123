/* Physical memory between processes. Memory that can be exported has a file of its own (memfd). Behind the
 * bytes in it is a label, written at the first export, which tells an importing process what it is.
 */
#include "cuda/memory/vmm.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define LABEL_MAGIC 0x4c4542414c4d4953ull /* "SIMLABEL" */

struct label {
	uint64_t magic, share;
	uint32_t gpu, reserved;
};

_Static_assert(sizeof(struct label) == PHYSICAL_LABEL, "where the memory ends");

/* Writes the label at the first export. */
static bool write_label(struct sim_physical *piece)
{
	if (!piece->share)
		piece->share = machine_share(&sim.machine, piece->gpu, piece->size);
	struct label label = {.magic = LABEL_MAGIC, .share = piece->share, .gpu = piece->gpu};
	return piece->share &&
	       pwrite(piece->fd, &label, sizeof(label), (off_t)piece->size) == sizeof(label);
}

/* The label of a file, and the size of the memory in it. */
static bool read_label(int fd, struct label *label, uint64_t *size)
{
	struct stat st;
	if (fstat(fd, &st) || (uint64_t)st.st_size <= sizeof(*label))
		return false;
	*size = (uint64_t)st.st_size - sizeof(*label);
	return pread(fd, label, sizeof(*label), (off_t)*size) == sizeof(*label) &&
	       label->magic == LABEL_MAGIC;
}

/* As with the real driver, a descriptor that is exported or imported is an open file of its own. */
static int open_again(int fd)
{
	char path[40];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
	SIM_ENTER();
	struct sim_physical *piece = (struct sim_physical *)handle;
	if (!out || flags || !handle_is(piece, SIM_PHYSICAL) || !piece->own_file ||
	    type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (!write_label(piece))
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = open_again(piece->fd);
	*(int *)out = fd;
	return fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type)
{
	SIM_ENTER();
	struct label label;
	uint64_t size;
	if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    !read_label((int)(intptr_t)os_handle, &label, &size))
		return CUDA_ERROR_INVALID_VALUE;
	int device = 0;
	while (device < sim.count && sim.devices[device].gpu != label.gpu)
		device++;
	struct sim_physical *piece = calloc(1, sizeof(*piece));
	int fd = open_again((int)(intptr_t)os_handle);
	if (device == sim.count || !piece || fd < 0 ||
	    !machine_join(&sim.machine, label.share, label.gpu, size)) {
		free(piece);
		if (fd >= 0)
			close(fd);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*piece = (struct sim_physical){.size = size,
	                               .fd = fd,
	                               .own_file = true,
	                               .imported = true,
	                               .share = label.share,
	                               .handles = 1,
	                               .gpu = label.gpu};
	piece->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	piece->properties.requestedHandleTypes = type;
	piece->properties.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
	sim_self()->imported++;
	handle_add(piece, SIM_PHYSICAL);
	*handle = (CUmemGenericAllocationHandle)piece;
	return CUDA_SUCCESS;
}
