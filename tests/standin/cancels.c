/* A program that cancels a thread while it launches kernels, and goes on launching. It says "ready",
 * "cancelled" and "done", and waits for a line before each of the last two.
 *
 * With an argument: a thread makes a context and takes memory, and ends or is cancelled; then the
 * first thread takes as much. It says "done". */
#include <cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char code[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
						   ".visible .entry aliquot_spin(.param .u64 aliquot_spin_param_0)\n"
						   "{\n    ret;\n}\n";
static CUcontext context;
static CUfunction spin;

static void check(CUresult result)
{
	if (result != CUDA_SUCCESS) {
		printf("error %d\n", result);
		exit(1);
	}
}

static void launch(unsigned count)
{
	unsigned long long nanoseconds = 10000;
	void *parameters[] = {&nanoseconds};
	while (count--)
		check(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL));
}

static void *keep_launching(void *nothing)
{
	check(cuCtxSetCurrent(context));
	for (;;) {
		launch(1);
		pthread_testcancel();
	}
	return nothing;
}

static void say(const char *line)
{
	puts(line);
	fflush(stdout);
	getchar();
}

static void *take(void *nothing)
{
	CUdeviceptr pointer;
	check(cuDevicePrimaryCtxRetain(&context, 0));
	check(cuCtxSetCurrent(context));
	check(cuMemAlloc(&pointer, (size_t)1 << 30));
	check(cuMemFree(pointer));
	return nothing;
}

static int take_twice(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, take, NULL);
	pthread_join(thread, NULL);
	take(NULL);
	say("done");
	return 0;
}

int main(int count, char **arguments)
{
	CUmodule module;
	pthread_t thread;
	void *result;
	(void)arguments;
	check(cuInit(0));
	if (count > 1)
		return take_twice();
	check(cuDevicePrimaryCtxRetain(&context, 0));
	check(cuCtxSetCurrent(context));
	check(cuModuleLoadData(&module, code));
	check(cuModuleGetFunction(&spin, module, "aliquot_spin"));
	say("ready");
	for (unsigned i = 0; i < 5; i++) {
		pthread_create(&thread, NULL, keep_launching, NULL);
		usleep(100000);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		if (result != PTHREAD_CANCELED)
			exit(2);
	}
	say("cancelled");
	launch(50);
	check(cuCtxSynchronize());
	say("done");
	return 0;
}
