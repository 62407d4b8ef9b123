/* Graphs: nodes that hold operations, and the edges between them.
 *
 * A launch puts the operations of the nodes into the stream, in an order that respects the edges. They
 * run one after the other: the simulated engine runs one kernel at a time anyway. An executable graph
 * is a copy of the graph that it was made from; each of its nodes knows its original.
 *
 * Precondition of every function here: the driver's lock is held.
 */
#ifndef SIM_GRAPH_H
#define SIM_GRAPH_H

#include "cuda/code/module.h"

struct sim_node {
	struct sim_graph *graph;
	CUgraphNodeType type;
	struct sim_op *ops; /* usually one; a batch of memory operations has several, others none */
	size_t op_count;
	struct sim_graph *child;
	struct sim_tips dependencies;
	struct sim_node *origin; /* its original: only compared, since it may be freed */
	struct sim_node *twin;   /* its copy, while graph_copy runs */
	bool disabled;
	bool seen; /* by the walk that is under way */
	struct sim_node *next;
};

/* References of a graph to a user object. */
struct sim_user_reference {
	struct sim_user_object *object;
	unsigned int count;
	struct sim_user_reference *next;
};

struct sim_graph {
	struct sim_node *nodes, *last;
	struct sim_user_reference *user_references;
};

struct sim_exec {
	struct sim_graph *graph;
	uint64_t flags;
};

/* graph.c */
struct sim_graph *graph_make(void);
void graph_free(struct sim_graph *graph);
struct sim_graph *graph_copy(const struct sim_graph *graph);
CUresult graph_get(CUgraph handle, struct sim_graph **graph);
CUresult node_get(CUgraphNode handle, struct sim_node **node);
/* Adds a node, which from then on owns what `ops` refer to. */
CUresult node_add(struct sim_graph *graph, CUgraphNodeType type,
                  const struct sim_node *const *dependencies, size_t count,
                  const struct sim_op *ops, size_t op_count, struct sim_node **node);
/* Replaces the node's operation; the node owns what `op` refers to. */
CUresult node_set_op(struct sim_node *node, const struct sim_op *op);
struct sim_node *node_copied_from(const struct sim_graph *graph, const struct sim_node *origin);
/* Whether `node` depends on `on`, directly or through other nodes, or is `on`. */
bool node_reaches(struct sim_node *node, const struct sim_node *on);
/* Calls `visit` for every node after all nodes that it depends on; stops at the first error. */
CUresult graph_walk(struct sim_graph *graph, CUresult (*visit)(struct sim_node *node, void *data),
                    void *data);

/* nodes.c: operations from the parameters of nodes */
CUresult node_kernel_op(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_op *op);
CUresult node_copy_op(const CUDA_MEMCPY3D *params, struct sim_op *op);
CUresult node_fill_op(const CUDA_MEMSET_NODE_PARAMS *params, struct sim_op *op);

/* user_object.c */
void user_references_free(struct sim_user_reference *first);
struct sim_user_reference *user_references_copy(const struct sim_user_reference *first);
/* Adds `count` references to an object; `move`: the caller's own references become the list's. */
CUresult user_references_add(struct sim_user_reference **list, CUuserObject object,
                             unsigned int count, bool move);
CUresult user_references_remove(struct sim_user_reference **list, CUuserObject object,
                                unsigned int count);

#endif
