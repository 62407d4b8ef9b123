/* Stream capture: while a stream is captured, what the program submits to it becomes graph nodes.
 *
 * Each captured stream has its tips: the nodes that its next node will depend on. Recording an event
 * copies the stream's tips to the event. A stream that waits for the event adds them to its own tips,
 * and joins the capture if it was not part of it. A call that a capture forbids fails and invalidates
 * the capture, as with NVIDIA's driver.
 *
 * Precondition of every function here: the driver's lock is held.
 */
#ifndef SIM_CAPTURE_H
#define SIM_CAPTURE_H

#include "cuda/stream/stream.h"

struct sim_capture {
	struct sim_graph *graph;
	CUstreamCaptureMode mode;
	struct sim_stream *origin; /* the stream that the program began the capture in */
	pthread_t thread;
	uint64_t id;
	int references; /* captured streams, and events recorded in the capture */
	bool active, invalidated;
	bool foreign_graph;       /* the graph is the program's, and outlives a failed capture */
	struct sim_capture *next; /* in the list of active captures */
};

/* tips.c: what streams and events remember of a capture */
bool tips_add(struct sim_tips *tips, struct sim_node *node); /* false: out of memory */
bool tips_copy(struct sim_tips *to, const struct sim_tips *from);
void tips_clear(struct sim_tips *tips);
void capture_release(struct sim_capture *capture); /* drops one reference */
void capture_forget_event(struct sim_event *event);
void capture_forget_stream(struct sim_stream *stream);

/* capture.c */
/* Begins a capture into `graph`; NULL: into a new one. */
CUresult capture_begin(struct sim_stream *stream, struct sim_graph *graph,
                       CUstreamCaptureMode mode);
/* Ends the capture that the stream began; *graph is NULL if it failed. */
CUresult capture_end(struct sim_stream *stream, struct sim_graph **graph);
CUresult capture_add(struct sim_capture *capture, struct sim_stream *stream,
                     const struct sim_op *op);
/* For a stream that ends: invalidates or ends the capture it is part of. */
void capture_abandon(struct sim_stream *stream);
/* The capture that work in this stream would depend on implicitly; NULL: there is none. */
struct sim_capture *capture_implicit(const struct sim_stream *stream);
/* An error, which invalidates the capture, if a capture forbids: */
CUresult capture_check_legacy(const struct sim_stream *stream); /* work in the legacy stream */
CUresult capture_check_sync(const struct sim_stream *stream);   /* a call that would wait */
CUresult capture_check_unsafe(void); /* an unsafe call in this thread's capture mode */
CUstreamCaptureMode capture_exchange_mode(CUstreamCaptureMode mode); /* returns the old mode */

#endif
