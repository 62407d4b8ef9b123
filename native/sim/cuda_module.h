/* Modules, libraries and the kernels in them, as read from PTX.
 *
 * The simulation runs no code. Of a kernel it knows its name and its parameters, which it needs to
 * copy arguments and to answer questions; of a variable in global memory its size and first bytes'
 * place. A kernel takes 10 microseconds and does nothing, except those of these names:
 *
 *	aliquot_spin(u64 nanoseconds)           takes that long (from 2^63 on: for ever)
 *	aliquot_wait(u64 address, u64 value)    spins until the word at `address` is at least `value`
 *	aliquot_set(u64 address, u64 value)     writes the word at its end
 *	aliquot_fault()                         makes an illegal access at its end
 *
 * The words have 64 bits and lie in device memory (of any GPU), managed memory or pinned host
 * memory; an address that is none of this, or not a multiple of 8, is an illegal access as well.
 */
#ifndef SIM_MODULE_H
#define SIM_MODULE_H

#include "cuda_stream.h"

#define SIM_SPIN "aliquot_spin"
#define SIM_WAIT "aliquot_wait"
#define SIM_SET "aliquot_set"
#define SIM_FAULT "aliquot_fault"
#define SIM_KERNEL_NS 10000ull

struct sim_parameter {
	size_t offset, size;
};

/* What PTX says of one kernel. */
struct sim_entry {
	char *name;
	size_t count; /* of parameters */
	struct sim_parameter *parameters;
	size_t size;     /* of all parameters */
	int max_threads; /* of a block */
	int shared;      /* static bytes */
	struct sim_entry *next;
};

/* What PTX says of one variable. */
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
	struct sim_kernel *kernel; /* of a library; NULL */
	struct sim_function *next;
};

struct sim_module {
	struct sim_context *context;
	struct sim_ptx *ptx;
	struct sim_function *functions; /* in the order of the PTX */
	uint64_t base, size;            /* of its variables, and what it took of the GPU */
	struct sim_library *library;    /* that owns the PTX; NULL: the module does */
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

/* cuda_ptx.c */
CUresult ptx_read(const void *image, struct sim_ptx **ptx);
CUresult ptx_read_file(const char *path, char **image); /* the caller frees *image */
void ptx_free(struct sim_ptx *ptx);

/* cuda_module.c */
CUresult module_load(struct sim_context *context, struct sim_ptx *ptx, struct sim_library *library,
                     struct sim_module **module);
void module_unload(struct sim_module *module);
CUresult module_global(const struct sim_module *module, const char *name, CUdeviceptr *base,
                       size_t *size);
CUresult module_function(const struct sim_module *module, const char *name,
                         struct sim_function **out);
void function_attributes(int *attributes, const struct sim_entry *entry, const struct sim_ptx *ptx);

/* cuda_library.c */
CUresult library_module(struct sim_library *library, struct sim_context *context,
                        struct sim_module **module);
/* The function behind a CUfunction or a CUkernel given as one, in the current context. */
CUresult function_get(CUfunction handle, struct sim_function **function);

/* cuda_launch.c */
CUresult launch_prepare(struct sim_op *op, struct sim_function *function, const unsigned grid[3],
                        const unsigned block[3], unsigned shared, void **parameters, void **extra,
                        bool keep_arguments);
void arguments_free(struct sim_arguments *arguments);

#endif
