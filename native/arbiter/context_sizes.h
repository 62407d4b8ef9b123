/* What one context takes of a GPU, kept for the next arbiter.
 *
 * An arbiter measures it when a program makes the first context on a GPU (measure.h). It depends on the
 * model and on the driver, so the file `contexts` in the state directory has a line for each pair:
 *
 *   BYTES DRIVER MODEL
 *
 * DRIVER has no space, MODEL is the rest of the line. A line of another driver stays: the driver may come
 * back. The file is a convenience. Without it, or with a wrong line in it, the next context is measured
 * as the first one was.
 */
#ifndef ARBITER_CONTEXT_SIZES_H
#define ARBITER_CONTEXT_SIZES_H

#include "nvml.h"
#include "state.h"

/* Sets the context size of each GPU that has none, if the file has one for it. */
void context_sizes_read(const struct state *state, struct nvml *nvml);

/* Keeps the context size of a GPU. */
void context_sizes_keep(const struct state *state, const struct nvml *nvml, const struct gpu *gpu);

#endif
