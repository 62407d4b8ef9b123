/* Nodes that the program adds itself: conversion between their parameters and operations. */
#include "cuda/graph/graph.h"
#include "cuda/stream/copy.h"

#include <string.h>

CUresult node_kernel_op(const CUDA_KERNEL_NODE_PARAMS *p, struct sim_op *op)
{
	struct sim_function *function;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(function_get(p->func ? p->func : (CUfunction)p->kern, &function));
	return launch_prepare(op, function, (unsigned[]){p->gridDimX, p->gridDimY, p->gridDimZ},
	                      (unsigned[]){p->blockDimX, p->blockDimY, p->blockDimZ}, p->sharedMemBytes,
	                      p->kernelParams, p->extra, true);
}

CUresult node_copy_op(const CUDA_MEMCPY3D *p, struct sim_op *op)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_MEMCPY3D placed = *p;
	SIM_TRY(copy_place(&placed));
	*op = (struct sim_op){.kind = SIM_OP_COPY, .copy = *p};
	return CUDA_SUCCESS;
}

CUresult node_fill_op(const CUDA_MEMSET_NODE_PARAMS *p, struct sim_op *op)
{
	if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width ||
	    !p->height)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(fill_check(p));
	*op = (struct sim_op){.kind = SIM_OP_FILL, .fill = *p};
	return CUDA_SUCCESS;
}

static CUresult host_op(const CUDA_HOST_NODE_PARAMS *p, struct sim_op *op)
{
	if (!p || !p->fn)
		return CUDA_ERROR_INVALID_VALUE;
	*op = (struct sim_op){.kind = SIM_OP_HOST};
	op->host.function = p->fn;
	op->host.data = p->userData;
	return CUDA_SUCCESS;
}

static CUresult event_op(CUevent handle, enum sim_op_kind kind, struct sim_op *op)
{
	if (!handle_is(handle, SIM_EVENT))
		return CUDA_ERROR_INVALID_HANDLE;
	*op = (struct sim_op){.kind = kind};
	op->event.event = (struct sim_event *)handle;
	op->event.event->references++;
	return CUDA_SUCCESS;
}

/* Adds a node with one operation; `op` NULL: with none. Precondition: the lock is held. */
static CUresult add(CUgraphNode *out, CUgraph handle, const CUgraphNode *dependencies, size_t count,
                    CUgraphNodeType type, const struct sim_op *op)
{
	struct sim_graph *graph;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	return node_add(graph, type, (const struct sim_node *const *)dependencies, count, op,
	                op ? 1 : 0, (struct sim_node **)out);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_op op;
	SIM_TRY(node_kernel_op(params, &op));
	CUresult result = add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL, &op);
	if (result)
		arguments_free(&op.kernel.arguments);
	return result;
}

static CUDA_KERNEL_NODE_PARAMS from_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUDA_KERNEL_NODE_PARAMS now = {0};
	memcpy(&now, p, sizeof(*p));
	return now;
}

CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS now = from_v1(params);
	return cuGraphAddKernelNode_v2(out, graph, dependencies, count, &now);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMCPY3D *params, CUcontext context)
{
	SIM_ENTER();
	struct sim_op op;
	(void)context;
	SIM_TRY(node_copy_op(params, &op));
	return add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY, &op);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS *params,
                              CUcontext context)
{
	SIM_ENTER();
	struct sim_op op;
	(void)context;
	SIM_TRY(node_fill_op(params, &op));
	return add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET, &op);
}

CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_op op;
	SIM_TRY(host_op(params, &op));
	return add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_HOST, &op);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count)
{
	SIM_ENTER();
	return add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY, NULL);
}

static CUresult add_event(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                          size_t count, CUevent event, CUgraphNodeType type)
{
	SIM_ENTER();
	struct sim_op op;
	bool record = type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
	SIM_TRY(event_op(event, record ? SIM_OP_RECORD : SIM_OP_WAIT_EVENT, &op));
	CUresult result = add(out, graph, dependencies, count, type, &op);
	if (result)
		event_release(op.event.event);
	return result;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                                   size_t count, CUevent event)
{
	return add_event(out, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                                 size_t count, CUevent event)
{
	return add_event(out, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                                  size_t count, CUgraph child)
{
	SIM_ENTER();
	struct sim_graph *original;
	SIM_TRY(graph_get(child, &original));
	SIM_TRY(add(out, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH, NULL));
	((struct sim_node *)*out)->child = graph_copy(original);
	return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *edges, size_t count, CUgraphNodeParams *p)
{
	(void)edges;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	switch ((int)p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL: {
		CUDA_KERNEL_NODE_PARAMS params;
		memcpy(&params, &p->kernel, sizeof(params));
		return cuGraphAddKernelNode_v2(out, graph, dependencies, count, &params);
	}
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return cuGraphAddMemcpyNode(out, graph, dependencies, count, &p->memcpy.copyParams,
		                            p->memcpy.copyCtx);
	case CU_GRAPH_NODE_TYPE_MEMSET: {
		CUDA_MEMSET_NODE_PARAMS params;
		memcpy(&params, &p->memset, sizeof(params));
		return cuGraphAddMemsetNode(out, graph, dependencies, count, &params, p->memset.ctx);
	}
	case CU_GRAPH_NODE_TYPE_HOST: {
		CUDA_HOST_NODE_PARAMS params = {.fn = p->host.fn, .userData = p->host.userData};
		return cuGraphAddHostNode(out, graph, dependencies, count, &params);
	}
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return cuGraphAddChildGraphNode(out, graph, dependencies, count, p->graph.graph);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return cuGraphAddEmptyNode(out, graph, dependencies, count);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return cuGraphAddEventRecordNode(out, graph, dependencies, count, p->eventRecord.event);
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return cuGraphAddEventWaitNode(out, graph, dependencies, count, p->eventWait.event);
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
}

CUresult cuGraphAddNode(CUgraphNode *out, CUgraph graph, const CUgraphNode *dependencies,
                        size_t count, CUgraphNodeParams *params)
{
	return cuGraphAddNode_v2(out, graph, dependencies, NULL, count, params);
}

/* The node, if it has that type. Precondition: the lock is held. */
static CUresult typed(CUgraphNode handle, CUgraphNodeType type, struct sim_node **node)
{
	SIM_TRY(node_get(handle, node));
	return (*node)->type == type ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUDA_KERNEL_NODE_PARAMS kernel_params(const struct sim_op *op)
{
	return (CUDA_KERNEL_NODE_PARAMS){.func = (CUfunction)op->kernel.function,
	                                 .gridDimX = op->kernel.grid[0],
	                                 .gridDimY = op->kernel.grid[1],
	                                 .gridDimZ = op->kernel.grid[2],
	                                 .blockDimX = op->kernel.block[0],
	                                 .blockDimY = op->kernel.block[1],
	                                 .blockDimZ = op->kernel.block[2],
	                                 .sharedMemBytes = op->kernel.shared,
	                                 .kernelParams = op->kernel.arguments.pointers,
	                                 .kern = (CUkernel)op->kernel.function->kernel,
	                                 .ctx = (CUcontext)op->kernel.function->module->context};
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node));
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	*params = kernel_params(&node->ops[0]);
	return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	CUDA_KERNEL_NODE_PARAMS now;
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(cuGraphKernelNodeGetParams_v2(handle, &now));
	memcpy(params, &now, sizeof(*params));
	return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_KERNEL, &node));
	SIM_TRY(node_kernel_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	CUDA_KERNEL_NODE_PARAMS now = from_v1(params);
	return cuGraphKernelNodeSetParams_v2(handle, &now);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D *params)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	*params = node->ops[0].copy;
	return CUDA_SUCCESS;
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode handle, const CUDA_MEMCPY3D *params)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_MEMCPY, &node));
	SIM_TRY(node_copy_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	*params = node->ops[0].fill;
	return CUDA_SUCCESS;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_MEMSET, &node));
	SIM_TRY(node_fill_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode handle, CUDA_HOST_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_HOST, &node));
	if (!params)
		return CUDA_ERROR_INVALID_VALUE;
	*params = (CUDA_HOST_NODE_PARAMS){.fn = node->ops[0].host.function,
	                                  .userData = node->ops[0].host.data};
	return CUDA_SUCCESS;
}

CUresult cuGraphHostNodeSetParams(CUgraphNode handle, const CUDA_HOST_NODE_PARAMS *params)
{
	SIM_ENTER();
	struct sim_node *node;
	struct sim_op op;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_HOST, &node));
	SIM_TRY(host_op(params, &op));
	return node_set_op(node, &op);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *out)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(typed(handle, CU_GRAPH_NODE_TYPE_GRAPH, &node));
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUgraph)node->child;
	return CUDA_SUCCESS;
}
