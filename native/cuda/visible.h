/* Which of the grant's GPUs the program sees, and in what order.
 *
 * The program takes the grant for the whole machine: an index in its CUDA_VISIBLE_DEVICES counts
 * the grant's GPUs, a UUID (or the beginning of one) names one of them, and
 * CUDA_DEVICE_ORDER=PCI_BUS_ID orders them. The driver gets their UUIDs. */
#ifndef ALIQUOT_VISIBLE_H
#define ALIQUOT_VISIBLE_H

#include "aliquot/layout.h"

#include <stddef.h>

/* "GPU-", 36 characters and "," for each, and the final zero. */
#define VISIBLE_SIZE (ALIQUOT_MAX_GPUS * 42 + 1)

/* The value of CUDA_VISIBLE_DEVICES for the driver, if the program set it to `wanted` (NULL: not
 * set) and CUDA_DEVICE_ORDER to `order`. A GPU named twice stays named twice: the driver refuses
 * that. */
void visible_devices(const struct aliquot_limits *limits, const char *wanted, const char *order,
                     char out[VISIBLE_SIZE]);

#endif
