/* Graphs: launched as one, by a cost of their own; and the memory that they allocate. A node says how
 * much, and the card gives it when the graph is launched or uploaded for the first time (seen on a
 * card), keeping it until the program has it trimmed. */
#include "gate/gate.h"
#include "pool.h"
#include "session.h"
#include "table.h"

#include <stdlib.h>

/* Executable graphs that allocate: bytes, and in `handles` the trim up to which they have them. */
static struct table executables;
static _Atomic bool any;
static _Atomic uint32_t trims = 1;

struct need {
	uint64_t bytes;
	CUdevice device;
};

static void add_up(CUgraph graph, struct need *need);

static void add_node(CUgraphNode node, struct need *need)
{
	CUgraphNodeType type;
	if (REAL(cuGraphNodeGetType)(node, &type) != CUDA_SUCCESS)
		return;
	CUDA_MEM_ALLOC_NODE_PARAMS parameters;
	CUgraph child;
	if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
	    REAL(cuGraphMemAllocNodeGetParams)(node, &parameters) == CUDA_SUCCESS &&
	    parameters.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		need->bytes += parameters.bytesize;
		need->device = parameters.poolProps.location.id;
	} else if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
	           REAL(cuGraphChildGraphNodeGetGraph)(node, &child) == CUDA_SUCCESS) {
		add_up(child, need);
	}
}

static void add_up(CUgraph graph, struct need *need)
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

static CUresult instantiated(CUresult result, const CUgraphExec *executable, CUgraph graph)
{
	struct need need = {0};
	if (result != CUDA_SUCCESS || !session_is_open())
		return result;
	add_up(graph, &need);
	if (need.bytes) {
		struct record replaced, record = {.key = (uint64_t)(uintptr_t)*executable,
		                                  .bytes = need.bytes,
		                                  .slice = session_slice_of_device(need.device),
		                                  .of = pool_of_graphs(need.device)};
		table_put(&executables, &record, &replaced);
		atomic_store(&any, true);
	}
	session_driver_took();
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

CUresult hook_graph_destroy(__typeof__(&cuGraphExecDestroy) real, CUgraphExec executable)
{
	struct record record, replaced;
	bool known = atomic_load_explicit(&any, memory_order_relaxed) &&
	             table_take(&executables, (uint64_t)(uintptr_t)executable, &record);
	CUresult result = real(executable);
	if (result == CUDA_SUCCESS)
		gate_forget_key(cost_key(executable, 1));
	if (known && result != CUDA_SUCCESS)
		table_put(&executables, &record, &replaced);
	else if (known)
		pool_end(record.of, 0);
	return result;
}

static bool has_memory(struct record *record, void *trim)
{
	record->handles = *(uint32_t *)trim;
	return false;
}

/* Launch and upload are the same to the memory: the first since a trim takes it. */
static CUresult with_memory(__typeof__(&cuGraphLaunch) real, CUgraphExec executable,
                            CUstream stream)
{
	struct record record;
	uint64_t step;
	if (!atomic_load_explicit(&any, memory_order_relaxed) || !session_is_open() ||
	    !table_get(&executables, (uint64_t)(uintptr_t)executable, &record) ||
	    record.slice == SESSION_NO_SLICE)
		return real(executable, stream);
	uint32_t trim = atomic_load(&trims);
	if (record.handles == trim)
		return real(executable, stream);
	if (!pool_begin(record.of, record.slice, record.bytes, &step))
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult result = real(executable, stream);
	pool_end(record.of, step);
	if (result == CUDA_SUCCESS)
		table_change(&executables, record.key, has_memory, &trim);
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
		atomic_fetch_add(&trims, 1); /* what had its memory may have to ask for it again */
		pool_end(pool_of_graphs(device), 0);
	}
	return result;
}
