/* Attributes of functions, and their occupancy. */
#include "cuda/code/module.h"

#define THREADS_PER_SM 2048
#define BLOCKS_PER_SM 32

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*value = function->attributes[attribute];
	return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
	SIM_ENTER();
	struct sim_function *function;
	SIM_TRY(function_get(handle, &function));
	if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
	    attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
	    (value < 0 || (uint64_t)value > sim.machine.shape.shared))
		return CUDA_ERROR_INVALID_VALUE;
	function->attributes[attribute] = value;
	return CUDA_SUCCESS;
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config)
{
	SIM_ENTER();
	struct sim_function *function;
	(void)config;
	return function_get(handle, &function);
}

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config)
{
	SIM_ENTER();
	struct sim_function *function;
	(void)config;
	return function_get(handle, &function);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!module)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*module = (CUmodule)function->module;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetName(const char **name, CUfunction handle)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*name = function->entry->name;
	return CUDA_SUCCESS;
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
	SIM_ENTER();
	struct sim_function *function;
	SIM_TRY(function_get(handle, &function));
	if (!offset || index >= function->entry->count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = function->entry->parameters[index].offset;
	if (size)
		*size = function->entry->parameters[index].size;
	return CUDA_SUCCESS;
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction handle)
{
	SIM_ENTER();
	struct sim_function *function;
	return function_get(handle, &function);
}

static int active_blocks(const struct sim_function *function, int block, size_t shared)
{
	int blocks = THREADS_PER_SM / block;
	size_t each = shared + (size_t)function->entry->shared;
	if (each && (size_t)blocks > sim.machine.shape.shared / each)
		blocks = (int)(sim.machine.shape.shared / each);
	return blocks < BLOCKS_PER_SM ? blocks : BLOCKS_PER_SM;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction handle,
                                                              int block, size_t shared,
                                                              unsigned int flags)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!blocks || block <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*blocks = block > function->entry->max_threads ? 0 : active_blocks(function, block, shared);
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle, int block,
                                                     size_t shared)
{
	return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, handle, block, shared, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction handle,
                                                   CUoccupancyB2DSize shared_of_block,
                                                   size_t shared, int limit, unsigned int flags)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!grid || !block || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*block = limit > 0 && limit < function->entry->max_threads ? limit
	                                                           : function->entry->max_threads;
	if (shared_of_block)
		shared = shared_of_block(*block);
	*grid = active_blocks(function, *block, shared) *
	        (int)machine_sms(&sim.machine, function->module->context->gpu);
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction handle,
                                          CUoccupancyB2DSize shared_of_block, size_t shared,
                                          int limit)
{
	return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, handle, shared_of_block, shared,
	                                                 limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *shared, CUfunction handle, int blocks,
                                                 int block)
{
	SIM_ENTER();
	struct sim_function *function;
	if (!shared || blocks <= 0 || block <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(handle, &function));
	*shared = sim.machine.shape.shared / (size_t)blocks;
	return CUDA_SUCCESS;
}
