/* Executable graphs: instantiation, launch, update. */
#include "cuda/graph/capture.h"
#include "cuda/graph/graph.h"
#include "cuda/stream/copy.h"

#include <string.h>

static CUresult exec_get(CUgraphExec handle, struct sim_exec **exec)
{
	*exec = (struct sim_exec *)handle;
	return handle_is(handle, SIM_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle, unsigned long long flags)
{
	SIM_ENTER();
	struct sim_graph *graph;
	if (!out || flags & ~15ull)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	struct sim_exec *exec = calloc(1, sizeof(*exec));
	if (!exec)
		return CUDA_ERROR_OUT_OF_MEMORY;
	exec->graph = graph_copy(graph);
	exec->flags = flags;
	handle_add(exec, SIM_EXEC);
	*out = (CUgraphExec)exec;
	return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log,
                            size_t size)
{
	if (error)
		*error = NULL;
	if (log && size)
		*log = 0;
	return cuGraphInstantiateWithFlags(out, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *error, char *log,
                               size_t size)
{
	return cuGraphInstantiate(out, graph, error, log, size);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult result = cuGraphInstantiateWithFlags(out, graph, params->flags);
	params->hErrNode_out = NULL;
	params->result_out = result ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return result;
}

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t *flags)
{
	SIM_ENTER();
	struct sim_exec *exec;
	if (!flags)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(exec_get(handle, &exec));
	*flags = exec->flags;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecDestroy(CUgraphExec handle)
{
	SIM_ENTER();
	struct sim_exec *exec;
	SIM_TRY(exec_get(handle, &exec));
	handle_remove(exec);
	graph_free(exec->graph);
	free(exec);
	return CUDA_SUCCESS;
}

/* Submits one operation of a node. */
static CUresult submit_op(struct sim_stream *stream, const struct sim_op *kept)
{
	struct sim_op op = *kept;
	switch (op.kind) {
	case SIM_OP_KERNEL:
		memset(&op.kernel.arguments, 0, sizeof(op.kernel.arguments));
		break;
	case SIM_OP_COPY:
		SIM_TRY(copy_place(&op.copy));
		break;
	case SIM_OP_FILL:
		SIM_TRY(fill_check(&op.fill)); /* the program may have freed the memory since */
		break;
	case SIM_OP_RECORD:
		op.event.number = ++op.event.event->recorded;
		op.event.event->references++;
		break;
	case SIM_OP_WAIT_EVENT:
		op.event.number = op.event.event->recorded;
		op.event.event->references++;
		break;
	default:
		break;
	}
	return stream_enqueue(stream, &op);
}

static CUresult submit_graph(struct sim_graph *graph, struct sim_stream *stream);

static CUresult submit_node(struct sim_node *node, void *stream)
{
	if (node->disabled)
		return CUDA_SUCCESS;
	for (size_t i = 0; i < node->op_count; i++)
		SIM_TRY(submit_op(stream, &node->ops[i]));
	return node->child ? submit_graph(node->child, stream) : CUDA_SUCCESS;
}

static CUresult submit_graph(struct sim_graph *graph, struct sim_stream *stream)
{
	return graph_walk(graph, submit_node, stream);
}

CUresult cuGraphLaunch(CUgraphExec handle, CUstream in)
{
	SIM_ENTER();
	struct sim_exec *exec;
	struct sim_stream *stream;
	SIM_TRY(exec_get(handle, &exec));
	SIM_TRY(stream_get(in, &stream));
	if (stream->capture) {
		struct sim_op op = {.kind = SIM_OP_EMPTY};
		SIM_TRY(stream_submit(stream, &op));
		struct sim_node *node = stream->tips.nodes[0];
		node->type = CU_GRAPH_NODE_TYPE_GRAPH;
		node->op_count = 0;
		node->child = graph_copy(exec->graph);
		return CUDA_SUCCESS;
	}
	SIM_TRY(capture_check_legacy(stream));
	return submit_graph(exec->graph, stream);
}

CUresult cuGraphUpload(CUgraphExec handle, CUstream in)
{
	SIM_ENTER();
	struct sim_exec *exec;
	struct sim_stream *stream;
	SIM_TRY(exec_get(handle, &exec));
	return stream_get(in, &stream);
}

/* The executable graph's copy of `original`. */
static CUresult own_node(CUgraphExec handle, CUgraphNode original, CUgraphNodeType type,
                         struct sim_node **node)
{
	struct sim_exec *exec;
	SIM_TRY(exec_get(handle, &exec));
	*node = node_copied_from(exec->graph, (struct sim_node *)original);
	return *node && (*node)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec handle, CUgraphNode original,
                                           const CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	SIM_TRY(own_node(handle, original, CU_GRAPH_NODE_TYPE_KERNEL, &node));
	SIM_TRY(node_kernel_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec handle, CUgraphNode original,
                                        const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS now = {0};
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&now, params, sizeof(*params));
	return cuGraphExecKernelNodeSetParams_v2(handle, original, &now);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec handle, CUgraphNode original,
                                        const CUDA_MEMCPY3D *params, CUcontext context)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	(void)context;
	SIM_TRY(own_node(handle, original, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
	SIM_TRY(node_copy_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec handle, CUgraphNode original,
                                        const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	(void)context;
	SIM_TRY(own_node(handle, original, CU_GRAPH_NODE_TYPE_MEMSET, &node));
	SIM_TRY(node_fill_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec handle, CUgraphNode original,
                                      const CUDA_HOST_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(own_node(handle, original, CU_GRAPH_NODE_TYPE_HOST, &node));
	if (!params || !params->fn)
		return CUDA_ERROR_INVALID_VALUE;
	node->ops[0].host.function = params->fn;
	node->ops[0].host.data = params->userData;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec handle, CUgraphNode original, unsigned int enabled)
{
	SIM_ENTER();
	struct sim_exec *exec;
	SIM_TRY(exec_get(handle, &exec));
	struct sim_node *node = node_copied_from(exec->graph, (struct sim_node *)original);
	if (!node)
		return CUDA_ERROR_INVALID_VALUE;
	node->disabled = !enabled;
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec handle, CUgraphNode original, unsigned int *enabled)
{
	SIM_ENTER();
	struct sim_exec *exec;
	SIM_TRY(exec_get(handle, &exec));
	const struct sim_node *node = node_copied_from(exec->graph, (struct sim_node *)original);
	if (!node || !enabled)
		return CUDA_ERROR_INVALID_VALUE;
	*enabled = !node->disabled;
	return CUDA_SUCCESS;
}

/* The first node by which the topology of two graphs differs; NULL: they have the same. */
static struct sim_node *difference(const struct sim_graph *a, const struct sim_graph *b)
{
	struct sim_node *x = a->nodes, *y = b->nodes;
	for (; x && y; x = x->next, y = y->next)
		if (x->type != y->type || x->dependencies.count != y->dependencies.count)
			return y;
	return y ? y : x;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec handle, CUgraph with, CUgraphExecUpdateResultInfo *info)
{
	SIM_ENTER();
	struct sim_exec *exec;
	struct sim_graph *graph;
	if (!info)
		return CUDA_ERROR_INVALID_VALUE;
	memset(info, 0, sizeof(*info));
	SIM_TRY(exec_get(handle, &exec));
	SIM_TRY(graph_get(with, &graph));
	struct sim_node *node = difference(exec->graph, graph);
	if (node) {
		info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
		info->errorNode = (CUgraphNode)node;
		return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
	}
	struct sim_graph *copy = graph_copy(graph);
	struct sim_node *own = copy->nodes;
	for (const struct sim_node *old = exec->graph->nodes; old && own;
	     old = old->next, own = own->next)
		own->origin =
			old->origin; /* the program refers to nodes of the graph that it first instantiated */
	graph_free(exec->graph);
	exec->graph = copy;
	info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
	return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph with, CUgraphNode *error,
                           CUgraphExecUpdateResult *result)
{
	CUgraphExecUpdateResultInfo info;
	CUresult code = cuGraphExecUpdate_v2(handle, with, &info);
	if (error)
		*error = info.errorNode;
	if (result)
		*result = info.result;
	return code;
}
