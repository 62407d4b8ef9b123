/* Tips: what streams and events remember of a capture. See capture.h. */
#include "cuda/graph/capture.h"

#include <stdlib.h>

bool tips_add(struct sim_tips *tips, struct sim_node *node)
{
	for (size_t i = 0; i < tips->count; i++)
		if (tips->nodes[i] == node)
			return true;
	struct sim_node **grown = realloc(tips->nodes, (tips->count + 1) * sizeof(*grown));
	if (!grown)
		return false;
	grown[tips->count++] = node;
	tips->nodes = grown;
	return true;
}

bool tips_copy(struct sim_tips *to, const struct sim_tips *from)
{
	for (size_t i = 0; i < from->count; i++)
		if (!tips_add(to, from->nodes[i]))
			return false;
	return true;
}

void tips_clear(struct sim_tips *tips)
{
	free(tips->nodes);
	*tips = (struct sim_tips){0};
}

void capture_release(struct sim_capture *capture)
{
	if (--capture->references == 0)
		free(capture);
}

void capture_forget_event(struct sim_event *event)
{
	if (event->capture)
		capture_release(event->capture);
	event->capture = NULL;
	tips_clear(&event->tips);
}

void capture_forget_stream(struct sim_stream *stream)
{
	struct sim_capture *capture = stream->capture;
	tips_clear(&stream->tips);
	stream->capture = NULL;
	capture_release(capture);
}
