/* Memory that graphs allocate: a node says how much, and the card gives it when the graph is launched
 * or uploaded for the first time (seen on a card), keeping it until it is trimmed. */
#ifndef ALIQUOT_GRAPH_H
#define ALIQUOT_GRAPH_H

/* Graphs that had their memory may have to ask for it again. */
void graphs_were_trimmed(void);

#endif
