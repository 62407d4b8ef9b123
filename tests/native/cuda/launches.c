/* Threads that launch by all calls concurrently, while streams and contexts come and go.
 *
 *     launches PATH-OF-LIBCUDA THREADS ROUNDS SEED
 *
 * Every call must work. It ends when all its work has ended. */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>

#include "../check.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { SHARED = 4, MOST_THREADS = 64 };

static const char kernels[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
							  ".visible .entry aliquot_spin(.param .u64 aliquot_spin_0)\n"
							  "{\n\tret;\n}\n";

/* clang-format off */
#define FUNCTIONS(X) \
	X(cuInit) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxCreate_v2) X(cuCtxDestroy_v2) \
	X(cuCtxSynchronize) X(cuModuleLoadData) X(cuModuleGetFunction) X(cuModuleUnload) \
	X(cuLaunchKernel) X(cuLaunchKernel_ptsz) X(cuStreamCreate) X(cuStreamDestroy_v2) \
	X(cuStreamQuery) X(cuStreamSynchronize) X(cuEventCreate) X(cuEventRecord) X(cuEventDestroy_v2) \
	X(cuEventQuery) X(cuStreamWaitEvent) X(cuStreamBeginCapture_v2) X(cuStreamEndCapture) \
	X(cuGraphGetNodes) X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphExecDestroy) \
	X(cuGraphDestroy)
/* clang-format on */
#define POINTER(name) __typeof__(&name) name;
static struct {
	FUNCTIONS(POINTER)
} call;

#define OK(code)                                                                                   \
	do {                                                                                           \
		CUresult result_ = (code);                                                                 \
		if (result_ != CUDA_SUCCESS)                                                               \
			fprintf(stderr, "launches: error %d\n", (int)result_);                                 \
		CHECK(result_ == CUDA_SUCCESS);                                                            \
	} while (0)

static CUcontext primary;
static CUfunction primary_spin;
static CUstream shared[SHARED];

struct worker {
	pthread_t thread;
	uint64_t seed;
	unsigned rounds;
	CUstream own, side;
	CUevent event, back;
};

static uint64_t roll(struct worker *worker, uint64_t below)
{
	worker->seed = worker->seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (worker->seed >> 33) % below;
}

static CUfunction load(CUmodule *module)
{
	CUfunction function;
	OK(call.cuModuleLoadData(module, kernels));
	OK(call.cuModuleGetFunction(&function, *module, "aliquot_spin"));
	return function;
}

static void spin(CUfunction function, CUstream stream, bool per_thread)
{
	uint64_t nanoseconds = 2000;
	void *arguments[] = {&nanoseconds};
	__typeof__(call.cuLaunchKernel) launch = per_thread ? call.cuLaunchKernel_ptsz
	                                                    : call.cuLaunchKernel;
	OK(launch(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static CUstream any_stream(struct worker *worker)
{
	CUstream streams[] = {NULL, CU_STREAM_PER_THREAD, worker->own, shared[roll(worker, SHARED)]};
	return streams[roll(worker, 4)];
}

static void launch_some(struct worker *worker)
{
	CUstream stream = any_stream(worker);
	for (uint64_t i = roll(worker, 20); i > 0; i--)
		spin(primary_spin, stream, stream == NULL && roll(worker, 2));
}

static void wait_for_some(struct worker *worker)
{
	CUresult result = call.cuStreamQuery(worker->own);
	CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
	if (roll(worker, 8) == 0)
		OK(call.cuStreamSynchronize(worker->own));
}

static void join_streams(struct worker *worker)
{
	OK(call.cuEventRecord(worker->event, worker->own));
	OK(call.cuStreamWaitEvent(shared[roll(worker, SHARED)], worker->event, 0));
	CUresult result = call.cuEventQuery(worker->event);
	CHECK(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY);
}

/* Never blocking: others use the legacy stream, which would spoil the captures of such. */
static void replace_stream(struct worker *worker)
{
	OK(call.cuStreamDestroy_v2(worker->own));
	OK(call.cuStreamCreate(&worker->own, CU_STREAM_NON_BLOCKING));
}

/* A second stream, which has work of its own, joins the capture and leaves it again. */
static void join_capture(struct worker *worker, size_t launches)
{
	OK(call.cuEventRecord(worker->event, worker->own));
	OK(call.cuStreamWaitEvent(worker->side, worker->event, 0));
	for (size_t i = 0; i < launches; i++)
		spin(primary_spin, worker->side, false);
	OK(call.cuEventRecord(worker->back, worker->side));
	OK(call.cuStreamWaitEvent(worker->own, worker->back, 0));
}

static void capture_some(struct worker *worker)
{
	CUgraph graph;
	CUgraphExec executable;
	size_t count = 0, launches = 1 + roll(worker, 5), more = roll(worker, 3);
	OK(call.cuStreamBeginCapture_v2(worker->own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	for (size_t i = 0; i < launches; i++)
		spin(primary_spin, worker->own, false);
	if (more) {
		spin(primary_spin, worker->side, false);
		join_capture(worker, more);
		launches += more;
	}
	OK(call.cuStreamEndCapture(worker->own, &graph));
	OK(call.cuGraphGetNodes(graph, NULL, &count));
	CHECK(count == launches);
	OK(call.cuGraphInstantiateWithFlags(&executable, graph, 0));
	for (uint64_t i = roll(worker, 4); i > 0; i--)
		OK(call.cuGraphLaunch(executable, any_stream(worker)));
	OK(call.cuGraphExecDestroy(executable));
	OK(call.cuGraphDestroy(graph));
}

static void come_and_go(struct worker *worker)
{
	CUcontext context;
	CUmodule module;
	OK(call.cuCtxCreate_v2(&context, 0, 0));
	CUfunction function = load(&module);
	for (uint64_t i = roll(worker, 10); i > 0; i--)
		spin(function, NULL, roll(worker, 2));
	OK(call.cuCtxDestroy_v2(context));
	OK(call.cuCtxSetCurrent(primary));
}

static void *work(void *argument)
{
	struct worker *worker = argument;
	OK(call.cuCtxSetCurrent(primary));
	OK(call.cuStreamCreate(&worker->own, CU_STREAM_NON_BLOCKING));
	OK(call.cuStreamCreate(&worker->side, CU_STREAM_NON_BLOCKING));
	OK(call.cuEventCreate(&worker->event, 0));
	OK(call.cuEventCreate(&worker->back, 0));
	for (unsigned i = 0; i < worker->rounds; i++) {
		launch_some(worker);
		switch (roll(worker, 12)) {
		case 0:
			replace_stream(worker);
			break;
		case 1:
			capture_some(worker);
			break;
		case 2:
			if (roll(worker, 4) == 0)
				come_and_go(worker);
			break;
		case 3:
		case 4:
			join_streams(worker);
			break;
		default:
			wait_for_some(worker);
		}
	}
	OK(call.cuStreamSynchronize(worker->own));
	OK(call.cuStreamDestroy_v2(worker->own));
	OK(call.cuStreamDestroy_v2(worker->side));
	OK(call.cuEventDestroy_v2(worker->event));
	OK(call.cuEventDestroy_v2(worker->back));
	return NULL;
}

int main(int count, char **arguments)
{
	static struct worker workers[MOST_THREADS];
	CHECK(count == 5);
	void *library = dlopen(arguments[1], RTLD_NOW);
	unsigned threads = (unsigned)atoi(arguments[2]);
	CHECK(library && threads <= MOST_THREADS);
#define LOOK_UP(name) CHECK((call.name = (__typeof__(&name))dlsym(library, #name)));
	FUNCTIONS(LOOK_UP)
	CUmodule module;
	OK(call.cuInit(0));
	OK(call.cuDevicePrimaryCtxRetain(&primary, 0));
	OK(call.cuCtxSetCurrent(primary));
	primary_spin = load(&module);
	for (unsigned i = 0; i < SHARED; i++)
		OK(call.cuStreamCreate(&shared[i], CU_STREAM_NON_BLOCKING));
	for (unsigned i = 0; i < threads; i++) {
		workers[i].rounds = (unsigned)atoi(arguments[3]);
		workers[i].seed = (uint64_t)atoi(arguments[4]) * 1000 + i;
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
	}
	for (unsigned i = 0; i < threads; i++)
		pthread_join(workers[i].thread, NULL);
	OK(call.cuCtxSynchronize());
	printf("done\n");
	fflush(stdout);
	getchar(); /* until somebody has looked at the pages */
	return 0;
}
