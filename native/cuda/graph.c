/* The calls for executable graphs: a graph is launched like a kernel, with its own cost, and may
 * allocate memory, on several GPUs. A node says how much. The GPU takes it when the graph is launched
 * or uploaded for the first time (seen on a GPU), and keeps it until the program trims it. */
#include "gate/gate.h"
#include "map.h"
#include "pool.h"
#include "session.h"

#include <stdlib.h>

/* An executable graph that allocates. */
struct graph_memory {
	uint64_t key;                     /* its handle */
	uint64_t bytes[ALIQUOT_MAX_GPUS]; /* by device */
	uint32_t trim; /* the value of `trims` when it took its memory last; 0: never */
};

MAP_OF(graph_map, struct graph_memory)

static struct graph_map executables;
static _Atomic bool has_executables; /* there are or were some */
static _Atomic uint32_t trims = 1;   /* counts the calls that trim */

static void add_up(CUgraph graph, struct graph_memory *need);

static void add_node(CUgraphNode node, struct graph_memory *need)
{
	CUgraphNodeType type;
	if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
		return;
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	CUgraph child;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
	    REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS &&
	    parameters.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    (unsigned)parameters.poolProps.location.id < ALIQUOT_MAX_GPUS) {
		need->bytes[parameters.poolProps.location.id] += parameters.bytesize;
	} else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
	           REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS) {
		add_up(child, need);
	}
}

static void add_up(CUgraph graph, struct graph_memory *need)
{
	size_t count = 0;
	if (REAL(cuGraphGetNodes)(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
		return;
	CUgraphNode *nodes = calloc(count, sizeof(*nodes));
	if (nodes && REAL(cuGraphGetNodes)(graph, nodes, &count) == CUDA_SUCCESS)
		for (size_t i = 0; i < count; i++)
			add_node(nodes[i], need);
	free(nodes);
}

/* The slice whose memory a graph takes on this device; SESSION_NO_SLICE: none. */
static uint32_t slice_for(const struct graph_memory *memory, CUdevice device)
{
	return memory->bytes[device] ? session_slice_of_device(device) : SESSION_NO_SLICE;
}

static CUresult instantiated(CUresult result, const CUgraphExec *executable, CUgraph graph)
{
	struct graph_memory memory = {0}, replaced;
	bool allocates = false;
	if (result != CUDA_SUCCESS || !session_is_open())
		return result;
	add_up(graph, &memory);
	for (CUdevice device = 0; device < (CUdevice)ALIQUOT_MAX_GPUS; device++)
		allocates |= slice_for(&memory, device) != SESSION_NO_SLICE;
	if (allocates) {
		memory.key = (uint64_t)(uintptr_t)*executable;
		graph_map_put(&executables, &memory, &replaced);
		atomic_store(&has_executables, true);
	}
	session_driver_allocated();
	return result;
}

CUresult hook_instantiate(__typeof__(&cuGraphInstantiate_v2) real, CUgraphExec *executable,
                          CUgraph graph, CUgraphNode *error_node, char *log, size_t size)
{
	return instantiated(real(executable, graph, error_node, log, size), executable, graph);
}

CUresult hook_instantiate_with_flags(__typeof__(&cuGraphInstantiateWithFlags) real,
                                     CUgraphExec *executable, CUgraph graph,
                                     unsigned long long flags)
{
	return instantiated(real(executable, graph, flags), executable, graph);
}

CUresult hook_instantiate_with_params(__typeof__(&cuGraphInstantiateWithParams) real,
                                      CUgraphExec *executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
	return instantiated(real(executable, graph, parameters), executable, graph);
}

/* Set the charges to what the graphs have now; `steps` of it, by device, is no longer in flight. */
static void settle(const struct graph_memory *memory, const uint64_t *steps)
{
	for (CUdevice device = 0; device < (CUdevice)ALIQUOT_MAX_GPUS; device++)
		if (slice_for(memory, device) != SESSION_NO_SLICE)
			pool_settle(pool_of_graphs(device), steps ? steps[device] : 0);
}

CUresult hook_graph_destroy(__typeof__(&cuGraphExecDestroy) real, CUgraphExec executable)
{
	struct graph_memory memory, replaced;
	bool known = atomic_load_explicit(&has_executables, memory_order_relaxed) &&
	             session_is_open() &&
	             graph_map_take(&executables, (uint64_t)(uintptr_t)executable, &memory);
	CUresult result = real(executable);
	if (result == CUDA_SUCCESS)
		gate_forget_key(cost_key(executable, 1));
	if (known && result != CUDA_SUCCESS)
		graph_map_put(&executables, &memory, &replaced);
	else if (known)
		settle(&memory, NULL);
	return result;
}

static void set_trim(CUgraphExec executable, uint32_t trim)
{
	graph_map_lock(&executables);
	struct graph_memory *memory = graph_map_find(&executables, (uint64_t)(uintptr_t)executable);
	if (memory)
		memory->trim = trim;
	graph_map_unlock(&executables);
}

/* Charge what the graph may take, on all its GPUs or on none. */
static bool charge(const struct graph_memory *memory, uint64_t steps[ALIQUOT_MAX_GPUS])
{
	for (CUdevice device = 0; device < (CUdevice)ALIQUOT_MAX_GPUS; device++) {
		uint32_t slice = slice_for(memory, device);
		if (slice == SESSION_NO_SLICE ||
		    pool_charge_step(pool_of_graphs(device), slice, memory->bytes[device], &steps[device]))
			continue;
		while (device-- > 0)
			if (slice_for(memory, device) != SESSION_NO_SLICE)
				pool_settle(pool_of_graphs(device), steps[device]);
		return false;
	}
	return true;
}

/* Launch and upload both take the graph's memory, if it has none since the last trim. */
static CUresult with_memory(__typeof__(&cuGraphLaunch) real, CUgraphExec executable,
                            CUstream stream)
{
	struct graph_memory memory;
	uint64_t steps[ALIQUOT_MAX_GPUS] = {0};
	if (!atomic_load_explicit(&has_executables, memory_order_relaxed) || !session_is_open() ||
	    !graph_map_get(&executables, (uint64_t)(uintptr_t)executable, &memory))
		return real(executable, stream);
	uint32_t trim = atomic_load(&trims);
	if (memory.trim == trim)
		return real(executable, stream);
	if (!charge(&memory, steps))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(executable, stream);
	settle(&memory, steps);
	if (result == CUDA_SUCCESS)
		set_trim(executable, trim);
	return result;
}

CUresult hook_graph_launch(__typeof__(&cuGraphLaunch) real, CUgraphExec executable, CUstream stream)
{
	GATED(stream, false, cost_key(executable, 1), true, with_memory(real, executable, stream));
}

CUresult hook_graph_launch_ptsz(__typeof__(&cuGraphLaunch) real, CUgraphExec executable,
                                CUstream stream)
{
	GATED(stream, true, cost_key(executable, 1), true, with_memory(real, executable, stream));
}

CUresult hook_graph_upload(__typeof__(&cuGraphUpload) real, CUgraphExec executable, CUstream stream)
{
	return with_memory(real, executable, stream);
}

CUresult hook_graph_trim(__typeof__(&cuDeviceGraphMemTrim) real, CUdevice device)
{
	CUresult result = real(device);
	if (result == CUDA_SUCCESS && session_is_open()) {
		atomic_fetch_add(&trims, 1); /* graphs may have to take their memory again */
		pool_settle(pool_of_graphs(device), 0);
	}
	return result;
}
