/* Launches of kernels and host functions into streams. */
#include "cuda/code/module.h"
#include "cuda/graph/capture.h"

#include <stdlib.h>
#include <string.h>

/* The argument buffer in `extra`, if it is large enough for all parameters. */
static const char *packed(void **extra, size_t needed)
{
	const char *buffer = NULL;
	size_t size = 0;
	for (; extra && *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE)
			size = *(size_t *)extra[1];
	}
	return size >= needed ? buffer : NULL;
}

static const void *argument(const struct sim_entry *entry, size_t index, void **parameters,
                            const char *buffer)
{
	return parameters ? parameters[index] : buffer + entry->parameters[index].offset;
}

static CUresult keep(struct sim_arguments *out, const struct sim_entry *entry, void **parameters,
                     const char *buffer)
{
	out->count = entry->count;
	out->size = entry->size;
	out->bytes = calloc(1, entry->size ? entry->size : 1);
	out->pointers = calloc(entry->count + 1, sizeof(void *));
	if (!out->bytes || !out->pointers) {
		arguments_free(out);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (size_t i = 0; i < entry->count; i++) {
		out->pointers[i] = out->bytes + entry->parameters[i].offset;
		memcpy(out->pointers[i], argument(entry, i, parameters, buffer), entry->parameters[i].size);
	}
	return CUDA_SUCCESS;
}

static uint64_t argument_u64(const struct sim_entry *entry, size_t index, void **parameters,
                             const char *buffer)
{
	uint64_t value;
	memcpy(&value, argument(entry, index, parameters, buffer), sizeof(value));
	return value;
}

static uint64_t capped_duration(uint64_t ns)
{
	return ns > INT64_MAX ? SIM_NEVER : ns;
}

/* What a kernel does, by its name and parameters: see module.h. */
static void read_action(struct sim_op *op, const struct sim_entry *entry, void **parameters,
                        const char *buffer)
{
	size_t values = 0;
	while (values < entry->count && entry->parameters[values].size == sizeof(uint64_t))
		values++;
	op->kernel.duration_ns = SIM_KERNEL_NS;
	if (!strcmp(entry->name, SIM_FAULT))
		op->kernel.action = SIM_ACT_FAULT;
	else if (!strcmp(entry->name, SIM_SPIN) && values >= 1)
		op->kernel.duration_ns = capped_duration(argument_u64(entry, 0, parameters, buffer));
	else if (!strcmp(entry->name, SIM_WAIT) && values >= 2)
		op->kernel.action = SIM_ACT_WAIT;
	else if (!strcmp(entry->name, SIM_SET) && values >= 2)
		op->kernel.action = SIM_ACT_SET;
	if (op->kernel.action == SIM_ACT_WAIT || op->kernel.action == SIM_ACT_SET) {
		op->kernel.address = argument_u64(entry, 0, parameters, buffer);
		op->kernel.value = argument_u64(entry, 1, parameters, buffer);
	}
}

CUresult launch_prepare(struct sim_op *op, struct sim_function *function, const unsigned grid[3],
                        const unsigned block[3], unsigned shared, void **parameters, void **extra,
                        bool keep_arguments)
{
	const struct sim_entry *entry = function->entry;
	const char *buffer = parameters ? NULL : packed(extra, entry->size);
	uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
	if (!grid[0] || !grid[1] || !grid[2] || !threads || threads > (uint64_t)entry->max_threads ||
	    block[2] > 64 || grid[0] > 2147483647u || grid[1] > 65535 || grid[2] > 65535)
		return CUDA_ERROR_INVALID_VALUE;
	if ((parameters && extra) || (entry->count && !parameters && !buffer))
		return CUDA_ERROR_INVALID_VALUE;
	int most = function->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
	if (function->kernel &&
	    function->kernel->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] > most)
		most = function->kernel->attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
	if (shared > (unsigned)most)
		return CUDA_ERROR_INVALID_VALUE;
	*op = (struct sim_op){.kind = SIM_OP_KERNEL};
	op->kernel.function = function;
	memcpy(op->kernel.grid, grid, sizeof(op->kernel.grid));
	memcpy(op->kernel.block, block, sizeof(op->kernel.block));
	op->kernel.shared = shared;
	read_action(op, entry, parameters, buffer);
	return keep_arguments ? keep(&op->kernel.arguments, entry, parameters, buffer) : CUDA_SUCCESS;
}

static CUresult launch(CUfunction handle, const unsigned grid[3], const unsigned block[3],
                       unsigned shared, CUstream in, void **parameters, void **extra)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	struct sim_function *function;
	struct sim_stream *stream;
	struct sim_op op;
	if (!handle)
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(function_get(handle, &function));
	SIM_TRY(stream_get(in, &stream));
	if (function->module->context != stream->context)
		return CUDA_ERROR_INVALID_HANDLE;
	SIM_TRY(launch_prepare(&op, function, grid, block, shared, parameters, extra,
	                       stream->capture != NULL));
	CUresult result = stream_submit(stream, &op);
	if (result)
		arguments_free(&op.kernel.arguments);
	return result;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                        CUstream stream, void **parameters, void **extra)
{
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, parameters,
	              extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **parameters, void **extra)
{
	if (!c || (c->numAttrs && !c->attrs))
		return CUDA_ERROR_INVALID_VALUE;
	return launch(f, (unsigned[]){c->gridDimX, c->gridDimY, c->gridDimZ},
	              (unsigned[]){c->blockDimX, c->blockDimY, c->blockDimZ}, c->sharedMemBytes,
	              c->hStream, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                   unsigned int bx, unsigned int by, unsigned int bz,
                                   unsigned int shared, CUstream stream, void **parameters)
{
	return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, parameters,
	              NULL);
}

CUresult cuLaunchHostFunc(CUstream in, CUhostFn function, void *data)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!function)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(in, &stream));
	struct sim_op op = {.kind = SIM_OP_HOST};
	op.host.function = function;
	op.host.data = data;
	return stream_submit(stream, &op);
}

CUresult cuStreamAddCallback(CUstream in, CUstreamCallback callback, void *data, unsigned int flags)
{
	SIM_ENTER();
	struct sim_stream *stream;
	if (!callback || flags)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(stream_get(in, &stream));
	if (stream->capture)
		return capture_check_sync(stream);
	struct sim_op op = {.kind = SIM_OP_HOST};
	op.host.callback = callback;
	op.host.stream = in;
	op.host.data = data;
	return stream_submit(stream, &op);
}
