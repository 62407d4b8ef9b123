/* MIG: GPU instances and compute instances of the simulated GPUs (machine.h: units).
 *
 * The model. A GPU has eight memory slices. A GPU instance of a profile takes the profile's number of them,
 * from one of the memory slices at which the profile may begin; no memory slice is in two instances. The
 * ids are those that have been seen on real GPUs: they follow from where an instance begins and how
 * large it is. A compute instance takes compute slices of its GPU instance, and shares its memory. Its
 * UUID follows from the machine, the place of both instances and their ids, so a compute instance that is
 * made again at the same place has the same one.
 *
 * Which GPUs are in MIG mode when a machine is made: ALIQUOT_SIMULATE_MIG, `all` or indexes with commas.
 *
 * Precondition of all functions that change the file: its lock is held. Each change is one store of `used`,
 * so a process that is killed leaves an instance whole, or none.
 */
#ifndef SIM_MIG_H
#define SIM_MIG_H

#include "machine.h"

/* The GPU instance of a unit; NULL: the unit is a GPU, or it was destroyed. */
const struct sim_instance *mig_instance(const struct sim_map *map, uint32_t unit);

/* Whether the unit is a compute instance that was destroyed. */
bool mig_is_gone(const struct sim_map *map, uint32_t unit);

/* Reads which GPUs are in MIG mode, for a machine that is being made. */
void mig_choose(struct sim_map *map, const struct sim_shape *shape, const char *choice);

/* The index of the profile with that id; SIM_NONE: there is none. */
uint32_t mig_profile(const struct sim_shape *shape, uint32_t id);

/* Whether an instance of a profile can be made at a memory slice of a GPU. */
bool mig_fits(const struct sim_map *map, const struct sim_shape *shape, uint32_t gpu,
              uint32_t profile, uint32_t start);

/* How many instances of a profile a GPU has room for. */
uint32_t mig_left(const struct sim_map *map, const struct sim_shape *shape, uint32_t gpu,
                  uint32_t profile);

/* Makes a GPU instance; its index, or SIM_NONE: it does not fit. */
uint32_t mig_make(struct sim_map *map, const struct sim_shape *shape, uint32_t gpu,
                  uint32_t profile, uint32_t start);

/* Whether an instance has compute instances. */
bool mig_is_divided(const struct sim_map *map, uint32_t instance);

/* Whether compute slices of a GPU instance are free. */
bool mig_compute_fits(const struct sim_map *map, const struct sim_shape *shape, uint32_t instance,
                      uint32_t start, uint32_t slices);

/* Makes a compute instance; its index, or SIM_NONE: it does not fit. */
uint32_t mig_make_compute(struct sim_map *map, const struct sim_shape *shape, uint32_t instance,
                          uint32_t start, uint32_t slices);

/* The name of a unit, as the driver and NVML give it: that of an instance has its profile. */
void mig_name(const struct machine *m, uint32_t unit, char *out, size_t size);

/* Whether a living process uses the unit. */
bool mig_is_used(const struct sim_map *map, uint32_t unit);

#endif
