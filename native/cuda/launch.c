/* The calls that launch kernels.
 *
 * The common ones are written here by hand, not generated. On the fast path they call nothing that
 * would move their arguments, and jump to the driver's function with them. In a grant whose memory can leave
 * the GPU they wait for it first (swap/residence.h), and take the other path. */
#include "gate/gate.h"
#include "swap/residence.h"

#define COLD static __attribute__((noinline, cold))

static inline uint64_t key_of(CUfunction function, unsigned x, unsigned y, unsigned z)
{
	return cost_key(function, (uint64_t)x * y * z);
}

/* The driver's function; loads the driver if that was not done. */
static void *find_real(unsigned slot)
{
	forward_begin();
	return __atomic_load_n(&forward_real[slot], __ATOMIC_RELAXED);
}

/* Everything that a launch needs, `call`, the driver's, included. Where memory can leave the GPU, that is
 * mostly what the fast path is elsewhere. */
#define LAUNCH(gated, call)                                                                        \
	do {                                                                                           \
		struct residence_call resident = residence_enter();                                        \
		CUresult result;                                                                           \
		if (resident.is_inside &&                                                                  \
		    gate_fast_path((gated).stream, (gated).per_thread, (gated).key, false)) {              \
			result = call;                                                                         \
		} else {                                                                                   \
			gate_before(&(gated));                                                                 \
			result = gate_after(&(gated), call);                                                   \
		}                                                                                          \
		residence_leave(resident);                                                                 \
		return result;                                                                             \
	} while (0)

/* --- launches with the grid as arguments ------------------------------------------------------ */

#define SHAPE                                                                                      \
	CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
		unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **parameters
#define SHAPED                                                                                     \
	function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, parameters

COLD CUresult launch(unsigned slot, bool per_thread, SHAPE, void **extra)
{
	__typeof__(&cuLaunchKernel) real = find_real(slot);
	struct gate_launch gated = {.stream = stream,
	                            .per_thread = per_thread,
	                            .key = key_of(function, grid_x, grid_y, grid_z)};
	if (!real)
		return forward_missing();
	LAUNCH(gated, real(SHAPED, extra));
}

COLD CUresult launch_cooperative(unsigned slot, bool per_thread, SHAPE)
{
	__typeof__(&cuLaunchCooperativeKernel) real = find_real(slot);
	struct gate_launch gated = {.stream = stream,
	                            .per_thread = per_thread,
	                            .key = key_of(function, grid_x, grid_y, grid_z)};
	if (!real)
		return forward_missing();
	LAUNCH(gated, real(SHAPED));
}

/* There are no gates before the driver is loaded. The slow path loads it, or finds that it lacks
 * the function. */
#define KERNEL(name, per_thread)                                                                   \
	FORWARD_EXPORT CUresult name(SHAPE, void **extra)                                              \
	{                                                                                              \
		__typeof__(&name) real = REAL(name);                                                       \
		if (real && !residence_matters() &&                                                        \
		    gate_fast_path(stream, per_thread, key_of(function, grid_x, grid_y, grid_z), false))   \
			return real(SHAPED, extra);                                                            \
		return launch(SLOT_##name, per_thread, SHAPED, extra);                                     \
	}

#define COOPERATIVE(name, per_thread)                                                              \
	FORWARD_EXPORT CUresult name(SHAPE)                                                            \
	{                                                                                              \
		__typeof__(&name) real = REAL(name);                                                       \
		if (real && !residence_matters() &&                                                        \
		    gate_fast_path(stream, per_thread, key_of(function, grid_x, grid_y, grid_z), false))   \
			return real(SHAPED);                                                                   \
		return launch_cooperative(SLOT_##name, per_thread, SHAPED);                                \
	}

KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

/* --- launches with a configuration ------------------------------------------------------------ */

static inline uint64_t config_key(const CUlaunchConfig *config, CUfunction function)
{
	return key_of(function, config->gridDimX, config->gridDimY, config->gridDimZ);
}

COLD CUresult launch_ex(unsigned slot, bool per_thread, const CUlaunchConfig *config,
                        CUfunction function, void **parameters, void **extra)
{
	__typeof__(&cuLaunchKernelEx) real = find_real(slot);
	if (!real)
		return forward_missing();
	if (!config)
		return real(config, function, parameters, extra);
	struct gate_launch gated = {.stream = config->hStream,
	                            .per_thread = per_thread,
	                            .key = config_key(config, function)};
	LAUNCH(gated, real(config, function, parameters, extra));
}

#define CONFIGURED(name, per_thread)                                                               \
	FORWARD_EXPORT CUresult name(const CUlaunchConfig *config, CUfunction function,                \
	                             void **parameters, void **extra)                                  \
	{                                                                                              \
		__typeof__(&name) real = REAL(name);                                                       \
		if (real && config && !residence_matters() &&                                              \
		    gate_fast_path(config->hStream, per_thread, config_key(config, function), false))      \
			return real(config, function, parameters, extra);                                      \
		return launch_ex(SLOT_##name, per_thread, config, function, parameters, extra);            \
	}

CONFIGURED(cuLaunchKernelEx, false)
CONFIGURED(cuLaunchKernelEx_ptsz, true)

/* --- other launches --------------------------------------------------------------------------- */

/* One call that launches on several devices. */
CUresult hook_launch_on_devices(__typeof__(&cuLaunchCooperativeKernelMultiDevice) real,
                                CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
	struct gate_launch launches[ALIQUOT_MAX_GPUS];
	unsigned gated = !list ? 0 : count < ALIQUOT_MAX_GPUS ? count : ALIQUOT_MAX_GPUS;
	for (unsigned i = 0; i < gated; i++) {
		const CUDA_LAUNCH_PARAMS *one = &list[i];
		launches[i] = (struct gate_launch){.stream = one->hStream,
		                                   .key = key_of(one->function, one->gridDimX,
		                                                 one->gridDimY, one->gridDimZ)};
		gate_before(&launches[i]);
	}
	CUresult result = real(list, count, flags);
	for (unsigned i = 0; i < gated; i++)
		gate_after(&launches[i], result);
	return result;
}

/* The calls of the first CUDA versions: the blocks' shape was set by earlier calls. */
CUresult hook_launch_one(__typeof__(&cuLaunch) real, CUfunction function)
{
	GATED(NULL, false, key_of(function, 1, 1, 1), false, real(function));
}

CUresult hook_launch_grid(__typeof__(&cuLaunchGrid) real, CUfunction function, int width,
                          int height)
{
	GATED(NULL, false, key_of(function, (unsigned)width, (unsigned)height, 1), false,
	      real(function, width, height));
}

CUresult hook_launch_grid_async(__typeof__(&cuLaunchGridAsync) real, CUfunction function, int width,
                                int height, CUstream stream)
{
	GATED(stream, false, key_of(function, (unsigned)width, (unsigned)height, 1), false,
	      real(function, width, height, stream));
}
