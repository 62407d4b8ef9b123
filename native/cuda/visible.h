/* Which of the grant's GPUs the program sees, and in what order.
 *
 * To the program the grant is the machine: an index in its CUDA_VISIBLE_DEVICES counts the grant's
 * GPUs, a UUID (or the beginning of one) names one of them, CUDA_DEVICE_ORDER=PCI_BUS_ID orders them.
 * The driver is told by UUID. */
#ifndef ALIQUOT_VISIBLE_H
#define ALIQUOT_VISIBLE_H

#include "aliquot/layout.h"

#include <stddef.h>

/* "GPU-" + 36 + "," for each, and the end. */
#define VISIBLE_SIZE (ALIQUOT_MAX_GPUS * 42 + 1)

/* The value that shows the driver what `wanted` (NULL: everything) means within the grant. A GPU
 * named twice stays named twice: the driver refuses that, and so it shall. */
void visible_devices(const struct aliquot_limits *limits, const char *wanted, const char *order,
                     char out[VISIBLE_SIZE]);

#endif
