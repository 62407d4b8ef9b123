/* Modules, libraries and the kernels in them, as read from PTX.
 *
 * The simulation executes no code. Of a kernel it knows the name and the parameters, which it needs to
 * copy arguments and to answer queries. Of a variable in global memory it knows the size and the
 * address. A kernel takes 10 microseconds and does nothing, except kernels with these names:
 *
 *	aliquot_spin(u64 nanoseconds)           takes that long (from 2^63 on: never ends)
 *	aliquot_wait(u64 address, u64 value)    spins until the value at `address` is at least `value`
 *	aliquot_set(u64 address, u64 value)     writes `value` to `address` at its end
 *	aliquot_fault()                         makes an illegal access at its end
 *
 * The values have 64 bits. They must be in device memory of any GPU, in managed memory or in pinned
 * host memory, at a multiple of 8; any other address is an illegal access as well.
 *
 * Precondition of every function here except ptx_*: the driver's lock is held.
 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "cuda/stream/stream.h"

#define SIM_SPIN "aliquot_spin"
#define SIM_WAIT "aliquot_wait"
#define SIM_SET "aliquot_set"
#define SIM_FAULT "aliquot_fault"
#define SIM_KERNEL_NS 10000ull

struct sim_parameter {
	size_t offset, size;
};

/* A kernel in PTX. */
struct sim_entry {
	char *name;
	size_t count; /* parameters */
	struct sim_parameter *parameters;
	size_t size;     /* bytes of all parameters */
	int max_threads; /* in a block */
	int shared;      /* bytes of static shared memory */
	struct sim_entry *next;
};

/* A variable in PTX. */
struct sim_variable {
	char *name;
	size_t size, align;
	struct sim_variable *next;
};

struct sim_ptx {
	int version, target; /* 80 for 8.0; 90 for sm_90 */
	struct sim_entry *entries;
	struct sim_variable *variables;
	size_t entry_count;
};

struct sim_function {
	struct sim_module *module;
	const struct sim_entry *entry;
	int attributes[CU_FUNC_ATTRIBUTE_MAX];
	struct sim_kernel *kernel; /* its kernel, if a library has it; else NULL */
	struct sim_function *next;
};

struct sim_module {
	struct sim_context *context;
	struct sim_ptx *ptx;
	struct sim_function *functions; /* in the order of the PTX */
	uint64_t base, size;            /* the memory of its variables, which it took of the GPU */
	struct sim_library *library;    /* the owner of the PTX; NULL: the module owns it */
	struct sim_module *next;
};

struct sim_kernel {
	struct sim_library *library;
	const struct sim_entry *entry;
	int attributes[CU_FUNC_ATTRIBUTE_MAX];
	struct sim_kernel *next;
};

struct sim_library {
	struct sim_ptx *ptx;
	struct sim_kernel *kernels;
};

/* ptx.c */
CUresult ptx_read(const void *image, struct sim_ptx **ptx);
CUresult ptx_read_file(const char *path, char **image); /* the caller frees *image */
void ptx_free(struct sim_ptx *ptx);

/* module.c */
CUresult module_load(struct sim_context *context, struct sim_ptx *ptx, struct sim_library *library,
                     struct sim_module **module);
void module_unload(struct sim_module *module);
CUresult module_global(const struct sim_module *module, const char *name, CUdeviceptr *base,
                       size_t *size);
CUresult module_function(const struct sim_module *module, const char *name,
                         struct sim_function **out);
void function_attributes(int *attributes, const struct sim_entry *entry, const struct sim_ptx *ptx);

/* library.c */
CUresult library_module(struct sim_library *library, struct sim_context *context,
                        struct sim_module **module);
/* The function of a CUfunction, or of a CUkernel passed as one, in the current context. */
CUresult function_get(CUfunction handle, struct sim_function **function);

/* launch.c */
/* Checks a launch and writes the operation; `keep_arguments`: the operation owns a copy of them. */
CUresult launch_prepare(struct sim_op *op, struct sim_function *function, const unsigned grid[3],
                        const unsigned block[3], unsigned shared, void **parameters, void **extra,
                        bool keep_arguments);

#endif
