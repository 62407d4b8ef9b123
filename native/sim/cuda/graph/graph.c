/* Graphs and nodes: creation, copies, traversal. See graph.h. */
#include "cuda/graph/graph.h"

#include "cuda/graph/capture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sim_graph *graph_make(void)
{
	struct sim_graph *graph = calloc(1, sizeof(*graph));
	if (graph)
		handle_add(graph, SIM_GRAPH);
	return graph;
}

static void node_free(struct sim_node *node)
{
	handle_remove(node);
	for (size_t i = 0; i < node->op_count; i++)
		operation_release(&node->ops[i]);
	if (node->child)
		graph_free(node->child);
	tips_clear(&node->dependencies);
	free(node->ops);
	free(node);
}

void graph_free(struct sim_graph *graph)
{
	for (struct sim_node *node = graph->nodes, *next; node; node = next) {
		next = node->next;
		node_free(node);
	}
	user_references_free(graph->user_references);
	handle_remove(graph);
	free(graph);
}

CUresult graph_get(CUgraph handle, struct sim_graph **graph)
{
	*graph = (struct sim_graph *)handle;
	return handle_is(handle, SIM_GRAPH) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_get(CUgraphNode handle, struct sim_node **node)
{
	*node = (struct sim_node *)handle;
	return handle_is(handle, SIM_NODE) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult node_add(struct sim_graph *graph, CUgraphNodeType type,
                  const struct sim_node *const *dependencies, size_t count,
                  const struct sim_op *ops, size_t op_count, struct sim_node **out)
{
	if (count && !dependencies)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++)
		if (!handle_is(dependencies[i], SIM_NODE) || dependencies[i]->graph != graph)
			return CUDA_ERROR_INVALID_VALUE;
	struct sim_node *node = calloc(1, sizeof(*node));
	struct sim_op *own = calloc(op_count ? op_count : 1, sizeof(*own));
	if (!node || !own) {
		free(node);
		free(own);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (op_count)
		memcpy(own, ops, op_count * sizeof(*own));
	*node = (struct sim_node){.graph = graph, .type = type, .ops = own, .op_count = op_count};
	for (size_t i = 0; i < count; i++)
		tips_add(&node->dependencies, (struct sim_node *)dependencies[i]);
	if (graph->last)
		graph->last->next = node;
	else
		graph->nodes = node;
	graph->last = node;
	handle_add(node, SIM_NODE);
	*out = node;
	return CUDA_SUCCESS;
}

CUresult node_set_op(struct sim_node *node, const struct sim_op *op)
{
	operation_release(&node->ops[0]);
	node->ops[0] = *op;
	return CUDA_SUCCESS;
}

struct sim_node *node_copied_from(const struct sim_graph *graph, const struct sim_node *origin)
{
	struct sim_node *node = graph->nodes;
	while (node && node->origin != origin)
		node = node->next;
	return node;
}

struct sim_graph *graph_copy(const struct sim_graph *graph)
{
	struct sim_graph *copy = graph_make();
	if (!copy)
		return NULL;
	copy->user_references = user_references_copy(graph->user_references);
	for (struct sim_node *node = graph->nodes; node; node = node->next) {
		struct sim_node *own;
		if (node_add(copy, node->type, NULL, 0, node->ops, node->op_count, &own))
			break;
		own->origin = node;
		node->twin = own;
		for (size_t i = 0; i < node->op_count; i++)
			operation_copy(&own->ops[i], &node->ops[i]);
		own->child = node->child ? graph_copy(node->child) : NULL;
	}
	for (struct sim_node *own = copy->nodes; own; own = own->next)
		for (size_t i = 0; i < own->origin->dependencies.count; i++)
			tips_add(&own->dependencies, own->origin->dependencies.nodes[i]->twin);
	return copy;
}

static CUresult walk(struct sim_node *node, CUresult (*visit)(struct sim_node *, void *),
                     void *data)
{
	if (node->seen)
		return CUDA_SUCCESS;
	node->seen = true;
	for (size_t i = 0; i < node->dependencies.count; i++)
		SIM_TRY(walk(node->dependencies.nodes[i], visit, data));
	return visit(node, data);
}

CUresult graph_walk(struct sim_graph *graph, CUresult (*visit)(struct sim_node *, void *),
                    void *data)
{
	for (struct sim_node *node = graph->nodes; node; node = node->next)
		node->seen = false;
	for (struct sim_node *node = graph->nodes; node; node = node->next)
		SIM_TRY(walk(node, visit, data));
	return CUDA_SUCCESS;
}

static bool look_for(struct sim_node *node, const struct sim_node *on)
{
	if (node == on)
		return true;
	node->seen = true;
	for (size_t i = 0; i < node->dependencies.count; i++)
		if (!node->dependencies.nodes[i]->seen && look_for(node->dependencies.nodes[i], on))
			return true;
	return false;
}

bool node_reaches(struct sim_node *node, const struct sim_node *on)
{
	for (struct sim_node *other = node->graph->nodes; other; other = other->next)
		other->seen = false;
	return look_for(node, on);
}

CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	SIM_ENTER();
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (CUgraph)graph_make();
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph handle)
{
	SIM_ENTER();
	struct sim_graph *graph;
	SIM_TRY(graph_get(handle, &graph));
	graph_free(graph);
	return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *out, CUgraph handle)
{
	SIM_ENTER();
	struct sim_graph *graph;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	*out = (CUgraph)graph_copy(graph);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph handle)
{
	SIM_ENTER();
	struct sim_graph *graph;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	*out = (CUgraphNode)node_copied_from(graph, (struct sim_node *)original);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType *type)
{
	SIM_ENTER();
	struct sim_node *node;
	if (!type)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(node_get(handle, &node));
	*type = node->type;
	return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode handle)
{
	SIM_ENTER();
	struct sim_node *node;
	SIM_TRY(node_get(handle, &node));
	for (struct sim_node *other = node->graph->nodes; other; other = other->next)
		for (size_t i = 0; i < other->dependencies.count; i++)
			if (other->dependencies.nodes[i] == node)
				other->dependencies.nodes[i--] = other->dependencies
				                                     .nodes[--other->dependencies.count];
	struct sim_node **at = &node->graph->nodes, *before = NULL;
	for (; *at != node; at = &(*at)->next)
		before = *at;
	*at = node->next;
	if (node->graph->last == node)
		node->graph->last = before;
	node_free(node);
	return CUDA_SUCCESS;
}

static CUresult dot_node(struct sim_node *node, void *file)
{
	fprintf(file, "\t\"%p\" [label=\"type %d\"];\n", (void *)node, (int)node->type);
	for (size_t i = 0; i < node->dependencies.count; i++)
		fprintf(file, "\t\"%p\" -> \"%p\";\n", (void *)node->dependencies.nodes[i], (void *)node);
	return CUDA_SUCCESS;
}

CUresult cuGraphDebugDotPrint(CUgraph handle, const char *path, unsigned int flags)
{
	SIM_ENTER();
	struct sim_graph *graph;
	(void)flags;
	SIM_TRY(graph_get(handle, &graph));
	FILE *file = path ? fopen(path, "we") : NULL;
	if (!file)
		return CUDA_ERROR_OPERATING_SYSTEM;
	fprintf(file, "digraph {\n");
	graph_walk(graph, dot_node, file);
	fprintf(file, "}\n");
	fclose(file);
	return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned int count,
                                 unsigned int flags)
{
	SIM_ENTER();
	struct sim_graph *graph;
	SIM_TRY(graph_get(handle, &graph));
	return user_references_add(&graph->user_references, object, count,
	                           flags & CU_GRAPH_USER_OBJECT_MOVE);
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned int count)
{
	SIM_ENTER();
	struct sim_graph *graph;
	SIM_TRY(graph_get(handle, &graph));
	return user_references_remove(&graph->user_references, object, count);
}
