/* Modules: loading, unloading, and their functions and variables. */
#include "cuda/code/module.h"

#include "cuda/core/context_end.h"
#include "cuda/graph/capture.h"

#include <stdlib.h>
#include <string.h>

void function_attributes(int *attributes, const struct sim_entry *entry, const struct sim_ptx *ptx)
{
	attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = entry->max_threads;
	attributes[CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES] = entry->shared;
	attributes[CU_FUNC_ATTRIBUTE_NUM_REGS] = 32;
	attributes[CU_FUNC_ATTRIBUTE_PTX_VERSION] = ptx->target;
	attributes[CU_FUNC_ATTRIBUTE_BINARY_VERSION] = (int)(sim.machine.shape.major * 10 +
	                                                     sim.machine.shape.minor);
	attributes[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES] = 49152 - entry->shared;
	attributes[CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT] = -1;
}

static size_t place_variables(const struct sim_ptx *ptx)
{
	size_t size = 0;
	for (const struct sim_variable *v = ptx->variables; v; v = v->next)
		size = (size + v->align - 1) / v->align * v->align + v->size;
	return size;
}

/* Adds a range for each variable, in the layout of place_variables. */
static void add_variables(const struct sim_module *module)
{
	size_t at = 0;
	for (const struct sim_variable *v = module->ptx->variables; v; v = v->next) {
		at = (at + v->align - 1) / v->align * v->align;
		struct sim_range range = {.base = module->base + at,
		                          .size = v->size,
		                          .memory = SIM_GLOBAL,
		                          .context = module->context,
		                          .gpu = module->context->gpu};
		range_add(&range);
		at += v->size;
	}
}

void module_unload(struct sim_module *module)
{
	struct sim_module **at = &module->context->modules;
	while (*at != module)
		at = &(*at)->next;
	*at = module->next;
	for (struct sim_function *function = module->functions, *next; function; function = next) {
		next = function->next;
		handle_remove(function);
		free(function);
	}
	for (struct sim_range *range;
	     (range = range_from(module->base)) && range->base < module->base + module->size;)
		range_remove(range);
	pages_unmap(module->base, module->size);
	machine_give(&sim.machine, module->context->gpu, module->size);
	handle_remove(module);
	if (!module->library)
		ptx_free(module->ptx);
	free(module);
}

static void end_context(struct sim_context *context)
{
	while (context->modules)
		module_unload(context->modules);
}

CUresult module_load(struct sim_context *context, struct sim_ptx *ptx, struct sim_library *library,
                     struct sim_module **out)
{
	int own = (int)(sim.machine.shape.major * 10 + sim.machine.shape.minor);
	if (ptx->target > own)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	size_t variables = place_variables(ptx);
	uint64_t size = pages_round(variables ? variables : 1, SIM_PAGE);
	SIM_TRY(pages_take(context->gpu, size));
	struct sim_module *module = calloc(1, sizeof(*module));
	void *base = pages_map(size);
	if (!module || !base) {
		free(module);
		machine_give(&sim.machine, context->gpu, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*module = (struct sim_module){.context = context,
	                              .ptx = ptx,
	                              .base = (uint64_t)base,
	                              .size = size,
	                              .library = library,
	                              .next = context->modules};
	struct sim_function **tail = &module->functions;
	for (const struct sim_entry *entry = ptx->entries; entry; entry = entry->next) {
		struct sim_function *function = calloc(1, sizeof(*function));
		function->module = module;
		function->entry = entry;
		function_attributes(function->attributes, entry, ptx);
		handle_add(function, SIM_FUNCTION);
		*tail = function;
		tail = &function->next;
	}
	add_variables(module);
	context_at_end(CONTEXT_END_MODULES, end_context);
	context->modules = module;
	handle_add(module, SIM_MODULE);
	*out = module;
	return CUDA_SUCCESS;
}

static CUresult load(CUmodule *out, const void *image)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	struct sim_ptx *ptx;
	if (!out || !image)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(capture_check_unsafe());
	SIM_TRY(ptx_read(image, &ptx));
	CUresult result = module_load(context, ptx, NULL, (struct sim_module **)out);
	if (result)
		ptx_free(ptx);
	return result;
}

CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load(out, image);
}

/* Sets the sizes of requested logs to 0. */
static void empty_logs(unsigned int count, const CUjit_option *options, void **values)
{
	for (unsigned int i = 0; options && values && i < count; i++)
		if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
		    options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			values[i] = NULL;
}

CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int count,
                            CUjit_option *options, void **values)
{
	empty_logs(count, options, values);
	return load(out, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return load(out, image);
}

CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *image;
	if (sim.state != SIM_READY)
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(ptx_read_file(path, &image));
	CUresult result = load(out, image);
	free(image);
	return result;
}

static CUresult get(CUmodule handle, struct sim_module **module)
{
	*module = (struct sim_module *)handle;
	return handle_is(handle, SIM_MODULE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuModuleUnload(CUmodule handle)
{
	SIM_ENTER();
	struct sim_module *module;
	SIM_TRY(get(handle, &module));
	if (module->library)
		return CUDA_ERROR_NOT_PERMITTED;
	SIM_TRY(capture_check_unsafe());
	uint64_t base = module->base, size = module->size;
	SIM_TRY(context_wait(module->context));
	memory_wait(base, size);
	if (handle_is(handle, SIM_MODULE))
		module_unload(module);
	return CUDA_SUCCESS;
}

CUresult module_function(const struct sim_module *module, const char *name,
                         struct sim_function **out)
{
	for (struct sim_function *f = module->functions; f; f = f->next)
		if (!strcmp(f->entry->name, name)) {
			*out = f;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name)
{
	SIM_ENTER();
	struct sim_module *module;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &module));
	return module_function(module, name, (struct sim_function **)out);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle)
{
	SIM_ENTER();
	struct sim_module *module;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &module));
	*count = (unsigned int)module->ptx->entry_count;
	return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule handle)
{
	SIM_ENTER();
	struct sim_module *module;
	if (!functions || !count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &module));
	struct sim_function *f = module->functions;
	for (unsigned int i = 0; f && i < count; i++, f = f->next)
		functions[i] = (CUfunction)f;
	return CUDA_SUCCESS;
}

CUresult module_global(const struct sim_module *module, const char *name, CUdeviceptr *base,
                       size_t *size)
{
	size_t at = 0;
	for (const struct sim_variable *v = module->ptx->variables; v; v = v->next) {
		at = (at + v->align - 1) / v->align * v->align;
		if (!strcmp(v->name, name)) {
			if (base)
				*base = module->base + at;
			if (size)
				*size = v->size;
			return CUDA_SUCCESS;
		}
		at += v->size;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *base, size_t *size, CUmodule handle, const char *name)
{
	SIM_ENTER();
	struct sim_module *module;
	if (!name || (!base && !size))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &module));
	return module_global(module, name, base, size);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	SIM_ENTER();
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_LAZY_LOADING;
	return CUDA_SUCCESS;
}
