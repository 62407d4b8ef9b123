/* The mover's context on its GPU: memory of programs imported and mapped, and copies.
 *
 * The driver is loaded by path, not linked. If it cannot make a context, for want of memory for
 * example, the mover runs without, and tries again when a request needs one.
 *
 * Any thread may call these functions. A function that fails leaves nothing mapped or held.
 */
#ifndef MOVER_GPU_H
#define MOVER_GPU_H

#include "fault.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A copy waits for the GPU each time that it has queued so much, but for the part before the last: it is a step (watch.h),
 * and the GPU always has something to copy. */
#define GPU_STEP (UINT64_C(256) << 20)

struct gpu_calls {
	CUresult (*init)(unsigned flags);
	CUresult (*device_count)(int *count);
	CUresult (*device)(CUdevice *device, int index);
	CUresult (*uuid)(CUuuid *uuid, CUdevice device);
	CUresult (*make_context)(CUcontext *context, unsigned flags, CUdevice device);
	CUresult (*end_context)(CUcontext context);
	CUresult (*set_context)(CUcontext context);
	CUresult (*error_name)(CUresult result, const char **name);
	CUresult (*register_host)(void *at, size_t bytes, unsigned flags);
	CUresult (*unregister_host)(void *at);
	CUresult (*import)(CUmemGenericAllocationHandle *handle, void *fd,
	                   CUmemAllocationHandleType type);
	CUresult (*release)(CUmemGenericAllocationHandle handle);
	CUresult (*reserve)(CUdeviceptr *at, size_t bytes, size_t alignment, CUdeviceptr wish,
	                    unsigned long long flags);
	CUresult (*unreserve)(CUdeviceptr at, size_t bytes);
	CUresult (*map)(CUdeviceptr at, size_t bytes, size_t offset,
	                CUmemGenericAllocationHandle handle, unsigned long long flags);
	CUresult (*unmap)(CUdeviceptr at, size_t bytes);
	CUresult (*set_access)(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *access,
	                       size_t count);
	CUresult (*make_stream)(CUstream *stream, unsigned flags);
	CUresult (*end_stream)(CUstream stream);
	CUresult (*wait_stream)(CUstream stream);
	CUresult (*query_stream)(CUstream stream);
	CUresult (*make_event)(CUevent *event, unsigned flags);
	CUresult (*end_event)(CUevent event);
	CUresult (*record)(CUevent event, CUstream stream);
	CUresult (*wait_event)(CUevent event);
	CUresult (*copy_out)(void *to, CUdeviceptr from, size_t bytes, CUstream stream);
	CUresult (*copy_in)(CUdeviceptr to, const void *from, size_t bytes, CUstream stream);
};

struct gpu {
	const char *library; /* the path of libcuda */
	uint8_t uuid[16];
	dev_t simulated; /* the file system of a simulated GPU's memory */
	pthread_mutex_t lock;
	uint64_t tried_ns; /* when a context was last asked for */
	struct fault fault;
	CUcontext context; /* NULL: none */
	atomic_bool lost;  /* the context is of no use any more */
	CUstream unused;   /* nothing is ever queued here */
	CUdevice device;
	struct gpu_calls calls;
};

/* Of one thread: a stream and the ends of the steps in it, made at the first use. */
struct gpu_stream {
	struct gpu *gpu;
	CUstream stream;
	CUevent steps[2]; /* of the step before the last, and of the last */
	unsigned step_count;
};

/* A program's memory, mapped here. */
struct gpu_memory {
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	size_t bytes;
};

/* `data`: a file in memory; a simulated GPU's memory is in files of the same file system. */
void gpu_init(struct gpu *gpu, const char *library, const uint8_t uuid[16], int data);
/* Whether there is a context now. Tries to make one at most once a second. */
bool gpu_is_ready(struct gpu *gpu, struct fault *fault);

/* Makes the context current in this thread, with a stream of its own. */
bool gpu_enter(struct gpu *gpu, struct gpu_stream *stream, struct fault *fault);
void gpu_leave(struct gpu_stream *stream);

/* Maps memory that a program has exported. The descriptor stays the caller's. */
bool gpu_import(struct gpu *gpu, int fd, size_t bytes, struct gpu_memory *out, struct fault *fault);
void gpu_drop(struct gpu *gpu, struct gpu_memory *memory);

/* Queues a copy between the memory and the host, whose memory is registered in steps of that size, in parts of at most
 * `most` bytes. */
bool gpu_copy(struct gpu_stream *stream, const struct gpu_memory *memory, void *host, bool out,
              uint64_t step, uint64_t most, struct fault *fault);
/* Marks the end of what is queued, with an event that is made if it is NULL. */
bool gpu_mark(struct gpu_stream *stream, CUevent *event, struct fault *fault);
bool gpu_wait(struct gpu *gpu, CUevent event, struct fault *fault);
void gpu_end_event(struct gpu *gpu, CUevent event);
/* Waits for all that is queued, also if that has failed. */
void gpu_drain(struct gpu_stream *stream);

/* Whether the context is of no use after a failure: only a new process helps. */
bool gpu_is_lost(const struct gpu *gpu);

bool gpu_register(struct gpu *gpu, void *at, size_t bytes);
void gpu_unregister(struct gpu *gpu, void *at);

#endif
