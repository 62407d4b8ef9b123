/* Queries for the nodes and edges of a graph, and changes to its edges. */
#include "cuda/graph/capture.h"
#include "cuda/graph/graph.h"

#include <string.h>

/* Adds a node to a list with `capacity` entries; *count increases even if the list is full. */
static void put(CUgraphNode *list, size_t capacity, size_t *count, const struct sim_node *node)
{
	if (list && *count < capacity)
		list[*count] = (CUgraphNode)node;
	++*count;
}

/* Without a list the result is the number of nodes; with one, the number written. */
static void set_count(const void *list, size_t capacity, size_t count, size_t *out)
{
	*out = list && count > capacity ? capacity : count;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
	SIM_ENTER();
	struct sim_graph *graph;
	size_t n = 0;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	for (const struct sim_node *node = graph->nodes; node; node = node->next)
		put(nodes, *count, &n, node);
	set_count(nodes, *count, n, count);
	return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode *nodes, size_t *count)
{
	SIM_ENTER();
	struct sim_graph *graph;
	size_t n = 0;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	for (const struct sim_node *node = graph->nodes; node; node = node->next)
		if (!node->dependencies.count)
			put(nodes, *count, &n, node);
	set_count(nodes, *count, n, count);
	return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph handle, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *data, size_t *count)
{
	SIM_ENTER();
	struct sim_graph *graph;
	size_t n = 0, m = 0;
	if (!count || !from != !to)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(graph_get(handle, &graph));
	for (const struct sim_node *node = graph->nodes; node; node = node->next)
		for (size_t i = 0; i < node->dependencies.count; i++) {
			if (data && n < *count)
				memset(&data[n], 0, sizeof(*data));
			put(from, *count, &n, node->dependencies.nodes[i]);
			put(to, *count, &m, node);
		}
	set_count(from, *count, n, count);
	return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph handle, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
	return cuGraphGetEdges_v2(handle, from, to, NULL, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode handle, CUgraphNode *nodes,
                                       CUgraphEdgeData *data, size_t *count)
{
	SIM_ENTER();
	struct sim_node *node;
	size_t n = 0;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(node_get(handle, &node));
	if (data)
		memset(data, 0, *count * sizeof(*data));
	for (size_t i = 0; i < node->dependencies.count; i++)
		put(nodes, *count, &n, node->dependencies.nodes[i]);
	set_count(nodes, *count, n, count);
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode handle, CUgraphNode *nodes, size_t *count)
{
	return cuGraphNodeGetDependencies_v2(handle, nodes, NULL, count);
}

static bool depends(const struct sim_node *node, const struct sim_node *on)
{
	for (size_t i = 0; i < node->dependencies.count; i++)
		if (node->dependencies.nodes[i] == on)
			return true;
	return false;
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode handle, CUgraphNode *nodes,
                                         CUgraphEdgeData *data, size_t *count)
{
	SIM_ENTER();
	struct sim_node *node;
	size_t n = 0;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	SIM_TRY(node_get(handle, &node));
	if (data)
		memset(data, 0, *count * sizeof(*data));
	for (const struct sim_node *other = node->graph->nodes; other; other = other->next)
		if (depends(other, node))
			put(nodes, *count, &n, other);
	set_count(nodes, *count, n, count);
	return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode handle, CUgraphNode *nodes, size_t *count)
{
	return cuGraphNodeGetDependentNodes_v2(handle, nodes, NULL, count);
}

CUresult cuGraphAddDependencies_v2(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *data, size_t count)
{
	SIM_ENTER();
	struct sim_graph *graph;
	struct sim_node *first, *second;
	(void)data;
	SIM_TRY(graph_get(handle, &graph));
	if (count && (!from || !to))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		SIM_TRY(node_get(from[i], &first));
		SIM_TRY(node_get(to[i], &second));
		if (first->graph != graph || second->graph != graph || depends(second, first) ||
		    node_reaches(first, second))
			return CUDA_ERROR_INVALID_VALUE;
		tips_add(&second->dependencies, first);
	}
	return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                size_t count)
{
	return cuGraphAddDependencies_v2(handle, from, to, NULL, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph handle, const CUgraphNode *from,
                                      const CUgraphNode *to, const CUgraphEdgeData *data,
                                      size_t count)
{
	SIM_ENTER();
	struct sim_graph *graph;
	struct sim_node *first, *second;
	(void)data;
	SIM_TRY(graph_get(handle, &graph));
	if (count && (!from || !to))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		SIM_TRY(node_get(from[i], &first));
		SIM_TRY(node_get(to[i], &second));
		if (!depends(second, first))
			return CUDA_ERROR_INVALID_VALUE;
		struct sim_tips *tips = &second->dependencies;
		for (size_t j = 0; j < tips->count; j++)
			if (tips->nodes[j] == first)
				tips->nodes[j--] = tips->nodes[--tips->count];
	}
	return CUDA_SUCCESS;
}

CUresult cuGraphRemoveDependencies(CUgraph handle, const CUgraphNode *from, const CUgraphNode *to,
                                   size_t count)
{
	return cuGraphRemoveDependencies_v2(handle, from, to, NULL, count);
}
