/* Graphs: nodes that hold the operations a stream would, with what each depends on.
 *
 * A launch puts the operations into the stream in an order that keeps the dependencies; they run
 * one after the other, since the engine runs one kernel at a time anyway. An executable graph is a
 * copy of the graph it was made from, each node of which knows the one it was copied from.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "cuda_module.h"

struct sim_node {
	struct sim_graph *graph;
	CUgraphNodeType type;
	struct sim_op
		*ops; /* usually one; a batch of memory operations has several, an empty node none */
	size_t op_count;
	struct sim_graph *child;
	struct sim_tips dependencies;
	struct sim_node *origin; /* it was copied from; never touched, only compared */
	struct sim_node *twin;   /* its copy, while its graph is being copied */
	bool disabled, seen;
	struct sim_node *next;
};

struct sim_held {
	struct sim_user_object *object;
	unsigned int count;
	struct sim_held *next;
};

struct sim_graph {
	struct sim_node *nodes, *last;
	struct sim_held *held;
};

struct sim_exec {
	struct sim_graph *graph;
	uint64_t flags;
};

/* cuda_graph.c */
struct sim_graph *graph_make(void);
void graph_free(struct sim_graph *graph);
struct sim_graph *graph_copy(const struct sim_graph *graph);
CUresult graph_get(CUgraph handle, struct sim_graph **graph);
CUresult node_get(CUgraphNode handle, struct sim_node **node);
/* A new node; takes `ops` over as they are. */
CUresult node_add(struct sim_graph *graph, CUgraphNodeType type,
                  const struct sim_node *const *dependencies, size_t count,
                  const struct sim_op *ops, size_t op_count, struct sim_node **node);
CUresult node_set_op(struct sim_node *node, const struct sim_op *op); /* takes `op` over */
struct sim_node *node_copied_from(const struct sim_graph *graph, const struct sim_node *origin);
bool node_reaches(struct sim_node *node,
                  const struct sim_node *on); /* depends on, over any number of edges */
/* Calls `visit` for every node, each after those it depends on. */
CUresult graph_walk(struct sim_graph *graph, CUresult (*visit)(struct sim_node *node, void *data),
                    void *data);
bool tips_add(struct sim_tips *tips, struct sim_node *node);
void tips_clear(struct sim_tips *tips);

/* cuda_graph_nodes.c: operations from the parameters of nodes */
CUresult node_kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_op *op);
CUresult node_copy_op(const CUDA_MEMCPY3D *params, struct sim_op *op);
CUresult node_set_params_op(const CUDA_MEMSET_NODE_PARAMS *params, struct sim_op *op);

/* cuda_graph_exec.c */
CUresult graph_ask(struct sim_graph *graph, struct sim_stream *stream);

/* cuda_user_object.c */
void held_free(struct sim_held *held);
struct sim_held *held_copy(const struct sim_held *held);

#endif
