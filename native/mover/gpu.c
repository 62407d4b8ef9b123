#include "gpu.h"

#include "watch.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>

#define RETRY_NS UINT64_C(1000000000)
#define NVIDIA_MAJOR 195 /* of the driver's devices, which its descriptors are */

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bool is_fatal(CUresult result)
{
	switch (result) {
	case CUDA_ERROR_DEINITIALIZED:
	case CUDA_ERROR_DEVICE_UNAVAILABLE:
	case CUDA_ERROR_ECC_UNCORRECTABLE:
	case CUDA_ERROR_NVLINK_UNCORRECTABLE:
	case CUDA_ERROR_ILLEGAL_ADDRESS:
	case CUDA_ERROR_CONTEXT_IS_DESTROYED:
	case CUDA_ERROR_HARDWARE_STACK_ERROR:
	case CUDA_ERROR_LAUNCH_FAILED:
	case CUDA_ERROR_UNKNOWN:
		return true;
	default:
		return false;
	}
}

/* Whether an unused stream reports an error too: then it was no fault of one program's request. The driver
 * answers CUDA_ERROR_UNKNOWN to descriptors that are no memory (seen on an H200). */
static bool is_context_lost(struct gpu *gpu)
{
	CUresult result = gpu->calls.query_stream(gpu->unused);
	return result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY;
}

static bool succeeds(struct gpu *gpu, CUresult result, const char *call, struct fault *fault)
{
	const char *name = NULL;
	watch_step();
	if (result == CUDA_SUCCESS)
		return true;
	if (gpu->context && is_fatal(result) && is_context_lost(gpu))
		atomic_store(&gpu->lost, true);
	if (!gpu->calls.error_name || gpu->calls.error_name(result, &name) || !name)
		name = "unknown error";
	return fault_set(fault,
	                 result == CUDA_ERROR_OUT_OF_MEMORY ? ALIQUOT_MOVE_GPU_FULL
	                                                    : ALIQUOT_MOVE_DRIVER,
	                 "%s: %s (%d)", call, name, (int)result);
}

static bool load(struct gpu *gpu, struct fault *fault)
{
	const struct {
		const char *name;
		void *call;
	} names[] = {
		{"cuInit", &gpu->calls.init},
		{"cuDeviceGetCount", &gpu->calls.device_count},
		{"cuDeviceGet", &gpu->calls.device},
		{"cuDeviceGetUuid", &gpu->calls.uuid},
		{"cuCtxCreate_v2", &gpu->calls.make_context},
		{"cuCtxDestroy_v2", &gpu->calls.end_context},
		{"cuCtxSetCurrent", &gpu->calls.set_context},
		{"cuGetErrorName", &gpu->calls.error_name},
		{"cuMemHostRegister_v2", &gpu->calls.register_host},
		{"cuMemHostUnregister", &gpu->calls.unregister_host},
		{"cuMemImportFromShareableHandle", &gpu->calls.import},
		{"cuMemRelease", &gpu->calls.release},
		{"cuMemAddressReserve", &gpu->calls.reserve},
		{"cuMemAddressFree", &gpu->calls.unreserve},
		{"cuMemMap", &gpu->calls.map},
		{"cuMemUnmap", &gpu->calls.unmap},
		{"cuMemSetAccess", &gpu->calls.set_access},
		{"cuStreamCreate", &gpu->calls.make_stream},
		{"cuStreamDestroy_v2", &gpu->calls.end_stream},
		{"cuStreamSynchronize", &gpu->calls.wait_stream},
		{"cuStreamQuery", &gpu->calls.query_stream},
		{"cuEventCreate", &gpu->calls.make_event},
		{"cuEventDestroy_v2", &gpu->calls.end_event},
		{"cuEventRecord", &gpu->calls.record},
		{"cuEventSynchronize", &gpu->calls.wait_event},
		{"cuMemcpyDtoHAsync_v2", &gpu->calls.copy_out},
		{"cuMemcpyHtoDAsync_v2", &gpu->calls.copy_in},
	};
	void *library = dlopen(gpu->library, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return fault_set(fault, ALIQUOT_MOVE_DRIVER, "%s", dlerror());
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		void *found = dlsym(library, names[i].name);
		if (!found)
			return fault_set(fault, ALIQUOT_MOVE_DRIVER, "the driver has no %s", names[i].name);
		memcpy(names[i].call, &found, sizeof(found));
	}
	return true;
}

static bool find_device(struct gpu *gpu, struct fault *fault)
{
	int count = 0;
	if (!succeeds(gpu, gpu->calls.device_count(&count), "cuDeviceGetCount", fault))
		return false;
	for (int i = 0; i < count; i++) {
		CUuuid uuid;
		if (gpu->calls.device(&gpu->device, i) || gpu->calls.uuid(&uuid, gpu->device))
			continue;
		if (!memcmp(uuid.bytes, gpu->uuid, sizeof(gpu->uuid)))
			return true;
	}
	return fault_set(fault, ALIQUOT_MOVE_DRIVER, "the driver does not find the GPU");
}

static bool open_context(struct gpu *gpu, struct fault *fault)
{
	CUcontext context = NULL;
	if ((!gpu->calls.init && !load(gpu, fault)) ||
	    !succeeds(gpu, gpu->calls.init(0), "cuInit", fault) || !find_device(gpu, fault) ||
	    !succeeds(gpu, gpu->calls.make_context(&context, CU_CTX_SCHED_BLOCKING_SYNC, gpu->device),
	              "cuCtxCreate", fault))
		return false;
	if (!succeeds(gpu, gpu->calls.make_stream(&gpu->unused, CU_STREAM_NON_BLOCKING),
	              "cuStreamCreate", fault)) {
		gpu->calls.end_context(context);
		return false;
	}
	gpu->context = context;
	return true;
}

void gpu_init(struct gpu *gpu, const char *library, const uint8_t uuid[16], int data)
{
	struct stat status;
	memset(gpu, 0, sizeof(*gpu));
	gpu->library = library;
	memcpy(gpu->uuid, uuid, sizeof(gpu->uuid));
	gpu->simulated = fstat(data, &status) ? 0 : status.st_dev;
	pthread_mutex_init(&gpu->lock, NULL);
}

bool gpu_is_ready(struct gpu *gpu, struct fault *fault)
{
	pthread_mutex_lock(&gpu->lock);
	uint64_t now = now_ns();
	if (!gpu->context && (!gpu->tried_ns || now - gpu->tried_ns > RETRY_NS)) {
		gpu->tried_ns = now;
		if (!open_context(gpu, &gpu->fault))
			fprintf(stderr, "aliquot-mover: %s\n", gpu->fault.text);
	}
	bool ready = gpu->context;
	if (!ready)
		*fault = gpu->fault;
	pthread_mutex_unlock(&gpu->lock);
	return ready;
}

bool gpu_enter(struct gpu *gpu, struct gpu_stream *stream, struct fault *fault)
{
	if (stream->stream)
		return true;
	if (!gpu_is_ready(gpu, fault) ||
	    !succeeds(gpu, gpu->calls.set_context(gpu->context), "cuCtxSetCurrent", fault) ||
	    !succeeds(gpu, gpu->calls.make_stream(&stream->stream, CU_STREAM_NON_BLOCKING),
	              "cuStreamCreate", fault))
		return false;
	stream->gpu = gpu;
	return true;
}

void gpu_leave(struct gpu_stream *stream)
{
	for (unsigned i = 0; i < 2; i++) {
		gpu_end_event(stream->gpu, stream->steps[i]);
		stream->steps[i] = NULL;
	}
	if (stream->stream)
		stream->gpu->calls.end_stream(stream->stream);
	stream->stream = NULL;
	stream->step_count = 0;
}

/* Whether the descriptor can be memory of a GPU. Asks no file system: one that a program serves itself
 * might never answer. */
static bool is_of_gpu(const struct gpu *gpu, int fd)
{
	struct statx status;
	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &status))
		return false;
	if (S_ISCHR(status.stx_mode))
		return status.stx_rdev_major == NVIDIA_MAJOR;
	return S_ISREG(status.stx_mode) &&
	       makedev(status.stx_dev_major, status.stx_dev_minor) == gpu->simulated;
}

bool gpu_import(struct gpu *gpu, int fd, size_t bytes, struct gpu_memory *out, struct fault *fault)
{
	const CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	struct gpu_memory memory = {.bytes = bytes};
	if (!is_of_gpu(gpu, fd))
		return fault_set(fault, ALIQUOT_MOVE_MALFORMED, "the descriptor is not memory of a GPU");
	if (!succeeds(gpu,
	              gpu->calls.import(&memory.handle, (void *)(intptr_t)fd,
	                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	              "cuMemImportFromShareableHandle", fault))
		return false;
	if (!succeeds(gpu, gpu->calls.reserve(&memory.at, bytes, 0, 0, 0), "cuMemAddressReserve",
	              fault)) {
		gpu->calls.release(memory.handle);
		return false;
	}
	if (!succeeds(gpu, gpu->calls.map(memory.at, bytes, 0, memory.handle, 0), "cuMemMap", fault)) {
		gpu->calls.unreserve(memory.at, bytes);
		gpu->calls.release(memory.handle);
		return false;
	}
	if (!succeeds(gpu, gpu->calls.set_access(memory.at, bytes, &access, 1), "cuMemSetAccess",
	              fault)) {
		gpu_drop(gpu, &memory);
		return false;
	}
	*out = memory;
	return true;
}

void gpu_drop(struct gpu *gpu, struct gpu_memory *memory)
{
	if (!memory->at)
		return;
	gpu->calls.unmap(memory->at, memory->bytes);
	gpu->calls.unreserve(memory->at, memory->bytes);
	gpu->calls.release(memory->handle);
	memory->at = 0;
}

/* Ends a step of the stream, and waits for the one before it: two are under way at a time. */
static bool end_step(struct gpu_stream *stream, struct fault *fault)
{
	CUevent *last = &stream->steps[stream->step_count % 2];
	const CUevent *before = &stream->steps[(stream->step_count + 1) % 2];
	if (!gpu_mark(stream, last, fault))
		return false;
	return !stream->step_count++ || gpu_wait(stream->gpu, *before, fault);
}

/* One copy lies in one step: the driver takes two registered ranges for two. */
bool gpu_copy(struct gpu_stream *stream, const struct gpu_memory *memory, void *host, bool out,
              uint64_t step, uint64_t most, struct fault *fault)
{
	struct gpu *gpu = stream->gpu;
	uint64_t queued = 0;
	for (uint64_t done = 0, part; done < memory->bytes; done += part) {
		char *at = (char *)host + done;
		uint64_t rest = step - (uintptr_t)at % step;
		part = memory->bytes - done;
		part = part < rest ? part : rest;
		part = part < most ? part : most;
		CUresult result = out ? gpu->calls.copy_out(at, memory->at + done, part, stream->stream)
		                      : gpu->calls.copy_in(memory->at + done, at, part, stream->stream);
		if (!succeeds(gpu, result, out ? "cuMemcpyDtoHAsync" : "cuMemcpyHtoDAsync", fault))
			return false;
		queued += part;
		if (queued < GPU_STEP)
			continue;
		queued = 0;
		if (!end_step(stream, fault))
			return false;
	}
	return true;
}

bool gpu_mark(struct gpu_stream *stream, CUevent *event, struct fault *fault)
{
	struct gpu *gpu = stream->gpu;
	const unsigned flags = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING;
	if (!*event && !succeeds(gpu, gpu->calls.make_event(event, flags), "cuEventCreate", fault))
		return false;
	return succeeds(gpu, gpu->calls.record(*event, stream->stream), "cuEventRecord", fault);
}

bool gpu_wait(struct gpu *gpu, CUevent event, struct fault *fault)
{
	return succeeds(gpu, gpu->calls.wait_event(event), "a copy", fault);
}

void gpu_end_event(struct gpu *gpu, CUevent event)
{
	if (event)
		gpu->calls.end_event(event);
}

void gpu_drain(struct gpu_stream *stream)
{
	if (stream->stream)
		stream->gpu->calls.wait_stream(stream->stream);
}

bool gpu_is_lost(const struct gpu *gpu)
{
	return atomic_load(&gpu->lost);
}

bool gpu_register(struct gpu *gpu, void *at, size_t bytes)
{
	struct fault fault;
	return gpu_is_ready(gpu, &fault) && !gpu->calls.set_context(gpu->context) &&
	       !gpu->calls.register_host(at, bytes, CU_MEMHOSTREGISTER_PORTABLE);
}

void gpu_unregister(struct gpu *gpu, void *at)
{
	if (gpu->context && !gpu->calls.set_context(gpu->context))
		gpu->calls.unregister_host(at);
}
