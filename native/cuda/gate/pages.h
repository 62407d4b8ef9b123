/* A context's own mappings of the credit page and the work page, registered with the driver.
 *
 * A registration belongs to the context that made it, and memory can be registered only once. So
 * each context gets its own mappings. They are unmapped when the context has ended: the driver has
 * dropped its registrations by then. */
#ifndef ALIQUOT_GATE_PAGES_H
#define ALIQUOT_GATE_PAGES_H

#include "gate/state.h"

/* Map both pages, register them, and find their addresses on the GPU. On an error nothing stays
 * mapped. Precondition: the context is current and has a gate. */
CUresult gate_map_pages(struct gate_context *context);
/* Unmap them. Precondition: the context has ended, or no page is registered. */
void gate_unmap_pages(struct gate_context *context);

#endif
