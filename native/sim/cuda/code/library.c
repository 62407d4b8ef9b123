/* Libraries: code that is loaded into a context when the program first uses a kernel of it there. */
#include "cuda/code/module.h"

#include <stdlib.h>
#include <string.h>

static CUresult get(CUlibrary handle, struct sim_library **library)
{
	*library = (struct sim_library *)handle;
	return handle_is(handle, SIM_LIBRARY) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult load(CUlibrary *out, const void *code)
{
	SIM_ENTER();
	struct sim_ptx *ptx;
	if (!out || !code)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(ptx_read(code, &ptx));
	struct sim_library *library = calloc(1, sizeof(*library));
	library->ptx = ptx;
	struct sim_kernel **tail = &library->kernels;
	for (const struct sim_entry *entry = ptx->entries; entry; entry = entry->next) {
		struct sim_kernel *kernel = calloc(1, sizeof(*kernel));
		kernel->library = library;
		kernel->entry = entry;
		function_attributes(kernel->attributes, entry, ptx);
		handle_add(kernel, SIM_KERNEL);
		*tail = kernel;
		tail = &kernel->next;
	}
	handle_add(library, SIM_LIBRARY);
	*out = (CUlibrary)library;
	return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *jit, void **jit_values,
                           unsigned int jit_count, CUlibraryOption *options, void **values,
                           unsigned int count)
{
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	return load(out, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit,
                               void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                               void **values, unsigned int count)
{
	(void)jit;
	(void)jit_values;
	(void)jit_count;
	(void)options;
	(void)values;
	(void)count;
	char *image;
	if (!path)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(ptx_read_file(path, &image));
	CUresult result = load(out, image);
	free(image);
	return result;
}

static struct sim_module *loaded(const struct sim_library *library,
                                 const struct sim_context *context)
{
	struct sim_module *module = context->modules;
	while (module && module->library != library)
		module = module->next;
	return module;
}

CUresult library_module(struct sim_library *library, struct sim_context *context,
                        struct sim_module **module)
{
	*module = loaded(library, context);
	return *module ? CUDA_SUCCESS : module_load(context, library->ptx, library, module);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
	SIM_ENTER();
	struct sim_library *library;
	SIM_TRY(get(handle, &library));
	handle_remove(library);
	for (struct sim_context *c = sim.contexts; c; c = c->next) {
		if (!c->live || !loaded(library, c))
			continue;
		context_wait(c);
		if (loaded(library, c))
			module_unload(loaded(library, c));
	}
	for (struct sim_kernel *kernel = library->kernels, *next; kernel; kernel = next) {
		next = kernel->next;
		handle_remove(kernel);
		free(kernel);
	}
	ptx_free(library->ptx);
	free(library);
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name)
{
	SIM_ENTER();
	struct sim_library *library;
	if (!out || !name)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &library));
	for (struct sim_kernel *k = library->kernels; k; k = k->next)
		if (!strcmp(k->entry->name, name)) {
			*out = (CUkernel)k;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle)
{
	SIM_ENTER();
	struct sim_library *library;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &library));
	*count = (unsigned int)library->ptx->entry_count;
	return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary handle)
{
	SIM_ENTER();
	struct sim_library *library;
	if (!kernels || !count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &library));
	struct sim_kernel *k = library->kernels;
	for (unsigned int i = 0; k && i < count; i++, k = k->next)
		kernels[i] = (CUkernel)k;
	return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *out, CUlibrary handle)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	struct sim_library *library;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &library));
	return library_module(library, context, (struct sim_module **)out);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *base, size_t *size, CUlibrary handle, const char *name)
{
	SIM_ENTER();
	SIM_CURRENT(context);
	struct sim_library *library;
	struct sim_module *module;
	if (!name || (!base && !size))
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get(handle, &library));
	SIM_TRY(library_module(library, context, &module));
	return module_global(module, name, base, size);
}

static CUresult get_kernel(CUkernel handle, struct sim_kernel **kernel)
{
	*kernel = (struct sim_kernel *)handle;
	return handle_is(handle, SIM_KERNEL) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult function_get(CUfunction handle, struct sim_function **function)
{
	*function = (struct sim_function *)handle;
	if (handle_is(handle, SIM_FUNCTION))
		return CUDA_SUCCESS;
	struct sim_kernel *kernel;
	struct sim_module *module;
	SIM_TRY(get_kernel((CUkernel)handle, &kernel));
	SIM_CURRENT(context);
	SIM_TRY(library_module(kernel->library, context, &module));
	SIM_TRY(module_function(module, kernel->entry->name, function));
	(*function)->kernel = kernel;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *out, CUkernel handle)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get_kernel(handle, &kernel));
	return function_get((CUfunction)handle, (struct sim_function **)out);
}

CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel handle)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get_kernel(handle, &kernel));
	*out = (CUlibrary)kernel->library;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel handle)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	if (!name)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(get_kernel(handle, &kernel));
	*name = kernel->entry->name;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	SIM_TRY(get_kernel(handle, &kernel));
	if (!offset || index >= kernel->entry->count)
		return CUDA_ERROR_INVALID_VALUE;
	*offset = kernel->entry->parameters[index].offset;
	if (size)
		*size = kernel->entry->parameters[index].size;
	return CUDA_SUCCESS;
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle,
                              CUdevice device)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	SIM_TRY(get_kernel(handle, &kernel));
	if (!value || (unsigned)attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(device);
	*value = kernel->attributes[attribute];
	return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle,
                              CUdevice device)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	SIM_TRY(get_kernel(handle, &kernel));
	if (attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ||
	    attribute >= CU_FUNC_ATTRIBUTE_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_DEVICE_CHECK(device);
	kernel->attributes[attribute] = value;
	return CUDA_SUCCESS;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device)
{
	SIM_ENTER();
	struct sim_kernel *kernel;
	(void)config;
	SIM_DEVICE_CHECK(device);
	return get_kernel(handle, &kernel);
}
