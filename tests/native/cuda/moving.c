/* Threads that use memory by all kinds of calls, and one that asks how far the GPU is, while memory leaves and returns.
 *
 *     moving PATH-OF-LIBCUDA THREADS FILE
 *
 * Every call must work and every byte must be right. It says "ready", runs until its input ends, and says "done".
 * FILE has two numbers of 8 bytes, which grow: rounds of the threads, and questions about the GPU. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "../check.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_THREADS = 16, BUFFERS = 4 };

static const size_t sizes[BUFFERS] = {700, 64 << 10, 3 << 20, (5 << 20) + 77};
static const char kernels[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
							  ".visible .entry aliquot_spin(.param .u64 aliquot_spin_0)\n"
							  "{\n\tret;\n}\n";

/* clang-format off */
#define FUNCTIONS(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuModuleLoadData) \
	X(cuModuleGetFunction) X(cuLaunchKernel) X(cuStreamCreate) X(cuStreamQuery) \
	X(cuStreamSynchronize) X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuMemAlloc_v2) \
	X(cuMemFree_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemcpyDtoDAsync_v2) X(cuMemcpyDtoH_v2) \
	X(cuMemsetD8Async) X(cuPointerGetAttribute) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) \
	X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecDestroy) X(cuGraphDestroy)
/* clang-format on */
#define POINTER(name) __typeof__(&name) name;
static struct {
	FUNCTIONS(POINTER)
} call;

#define OK(code)                                                                                   \
	do {                                                                                           \
		CUresult result_ = (code);                                                                 \
		if (result_ != CUDA_SUCCESS)                                                               \
			fprintf(stderr, "moving: %s: error %d\n", #code, (int)result_);                        \
		CHECK(result_ == CUDA_SUCCESS);                                                            \
	} while (0)

static CUcontext context;
static CUfunction spin;
static _Atomic bool over;
static struct {
	_Atomic uint64_t rounds, questions;
} *counts;

struct worker {
	pthread_t thread;
	uint64_t seed;
	CUstream stream;
	CUdeviceptr buffers[BUFFERS], other; /* other: as large as the largest */
	unsigned char *expected[BUFFERS], *read;
};

static uint64_t roll(struct worker *worker, uint64_t below)
{
	worker->seed = worker->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (worker->seed >> 33) % below;
}

static void change(struct worker *worker, unsigned i)
{
	size_t from = roll(worker, sizes[i]), bytes = roll(worker, sizes[i] - from) + 1;
	unsigned char value = (unsigned char)roll(worker, 256);
	memset(worker->expected[i] + from, value, bytes);
	if (roll(worker, 2))
		OK(call.cuMemsetD8Async(worker->buffers[i] + from, value, bytes, worker->stream));
	else
		OK(call.cuMemcpyHtoDAsync_v2(worker->buffers[i] + from, worker->expected[i] + from, bytes,
		                             worker->stream));
}

/* The address is in the graph: it must mean the same memory when the graph is launched. */
static void change_by_graph(struct worker *worker, unsigned i)
{
	CUgraph graph;
	CUgraphExec executable;
	OK(call.cuStreamBeginCapture_v2(worker->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	change(worker, i);
	OK(call.cuStreamEndCapture(worker->stream, &graph));
	OK(call.cuGraphInstantiateWithFlags(&executable, graph, 0));
	OK(call.cuGraphLaunch(executable, worker->stream));
	OK(call.cuStreamSynchronize(worker->stream));
	OK(call.cuGraphExecDestroy(executable));
	OK(call.cuGraphDestroy(graph));
}

static void launch(struct worker *worker)
{
	uint64_t ns = roll(worker, 200000);
	void *parameters[] = {&ns};
	OK(call.cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, worker->stream, parameters, NULL));
}

static void check(struct worker *worker, unsigned i)
{
	OK(call.cuStreamSynchronize(worker->stream));
	memset(worker->read, 0x5a, sizes[i]);
	OK(call.cuMemcpyDtoH_v2(worker->read, worker->buffers[i], sizes[i]));
	CHECK(memcmp(worker->read, worker->expected[i], sizes[i]) == 0);
}

static void check_by_copy(struct worker *worker, unsigned i)
{
	OK(call.cuMemcpyDtoDAsync_v2(worker->other, worker->buffers[i], sizes[i], worker->stream));
	OK(call.cuStreamSynchronize(worker->stream));
	OK(call.cuMemcpyDtoH_v2(worker->read, worker->other, sizes[i]));
	CHECK(memcmp(worker->read, worker->expected[i], sizes[i]) == 0);
}

static void fill_anew(struct worker *worker, unsigned i)
{
	OK(call.cuMemAlloc_v2(&worker->buffers[i], sizes[i]));
	for (size_t k = 0; k < sizes[i]; k++)
		worker->expected[i][k] = (unsigned char)(k * 7 + worker->seed);
	OK(call.cuMemcpyHtoDAsync_v2(worker->buffers[i], worker->expected[i], sizes[i],
	                             worker->stream));
}

static void ask(struct worker *worker, unsigned i)
{
	unsigned type = 0;
	OK(call.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, worker->buffers[i]));
	CHECK(type == CU_MEMORYTYPE_DEVICE);
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	OK(call.cuCtxSetCurrent(context));
	OK(call.cuStreamCreate(&worker->stream, CU_STREAM_NON_BLOCKING));
	OK(call.cuMemAlloc_v2(&worker->other, sizes[BUFFERS - 1]));
	worker->read = malloc(sizes[BUFFERS - 1]);
	for (unsigned i = 0; i < BUFFERS; i++) {
		worker->expected[i] = malloc(sizes[i]);
		fill_anew(worker, i);
	}
	while (!over) {
		unsigned i = (unsigned)roll(worker, BUFFERS);
		switch (roll(worker, 8)) {
		case 0:
			check(worker, i);
			break;
		case 1:
			check_by_copy(worker, i);
			break;
		case 2:
			change_by_graph(worker, i);
			break;
		case 3:
			OK(call.cuMemFree_v2(worker->buffers[i]));
			fill_anew(worker, i);
			break;
		case 4:
			ask(worker, i);
			break;
		case 5:
			launch(worker);
			break;
		default:
			change(worker, i);
		}
		atomic_fetch_add(&counts->rounds, 1);
	}
	for (unsigned i = 0; i < BUFFERS; i++)
		check(worker, i);
	return NULL;
}

static void *question(void *nothing)
{
	CUstream stream;
	CUevent event;
	OK(call.cuCtxSetCurrent(context));
	OK(call.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(call.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	while (!over) {
		OK(call.cuEventRecord(event, stream));
		OK(call.cuStreamSynchronize(stream));
		OK(call.cuEventQuery(event));
		OK(call.cuStreamQuery(stream));
		atomic_fetch_add(&counts->questions, 1);
		usleep(200);
	}
	return nothing;
}

static void start(const char *library)
{
	CUmodule module;
	void *handle = dlopen(library, RTLD_NOW);
	CHECK(handle);
#define FIND(name) CHECK((call.name = (__typeof__(&name))dlsym(handle, #name)));
	FUNCTIONS(FIND)
	OK(call.cuInit(0));
	OK(call.cuDevicePrimaryCtxRetain(&context, 0));
	OK(call.cuCtxSetCurrent(context));
	OK(call.cuModuleLoadData(&module, kernels));
	OK(call.cuModuleGetFunction(&spin, module, "aliquot_spin"));
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	unsigned threads = (unsigned)atoi(arguments[2]);
	static struct worker workers[MOST_THREADS];
	pthread_t asking;
	char ignored;
	int file = open(arguments[3], O_RDWR);
	CHECK(threads <= MOST_THREADS && file >= 0);
	counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	CHECK(counts != MAP_FAILED);
	start(arguments[1]);
	for (unsigned i = 0; i < threads; i++) {
		workers[i].seed = i + 1;
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
	}
	CHECK(pthread_create(&asking, NULL, question, NULL) == 0);
	CHECK(puts("ready") >= 0 && fflush(stdout) == 0);
	CHECK(read(0, &ignored, 1) == 0);
	over = true;
	for (unsigned i = 0; i < threads; i++)
		CHECK(pthread_join(workers[i].thread, NULL) == 0);
	CHECK(pthread_join(asking, NULL) == 0);
	CHECK(puts("done") >= 0);
	return 0;
}
