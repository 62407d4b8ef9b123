/* Setting a context up for gates, and trying out whether they work. */
#ifndef ALIQUOT_GATE_SELFTEST_H
#define ALIQUOT_GATE_SELFTEST_H

#include "gate/state.h"

/* Map the context's pages. For a slice's first context, also try out whether the GPU waits and
 * writes as it should; that decides for all contexts of the slice. If the GPU does not get to it
 * within 30 s, this context has no gates, and the next one tries again. An error: there can be no
 * gates in this context. Precondition: the context is current and has a gate, which the caller has not
 * taken. */
CUresult gate_set_up_context(struct gate_context *context, CUdevice device);

#endif
