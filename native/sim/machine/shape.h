/* The shape of the simulated machine: the model, number and topology of its GPUs.
 *
 * ALIQUOT_SIMULATE gives the model and the count. The file shapes.conf, in the folder of the library,
 * gives the properties of the model.
 */
#ifndef SIM_SHAPE_H
#define SIM_SHAPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_MAX_GPUS 16u
#define SIM_MAX_PROFILES 8u
#define SIM_MEMORY_SLICES 8u  /* of a GPU in MIG mode */
#define SIM_COMPUTE_SLICES 7u /* and what its instances have together at most */

enum sim_links { SIM_PCIE, SIM_PAIRS, SIM_NVSWITCH };

/* A profile of GPU instances: what one of them gets of a GPU. */
struct sim_profile {
	char name[16];   /* 1g.10gb */
	uint32_t kind;   /* NVML_GPU_INSTANCE_PROFILE_* */
	uint32_t id;     /* as in nvidia-smi mig -lgip */
	uint32_t slices; /* of compute */
	uint32_t sms;    /* multiprocessors */
	uint64_t memory; /* bytes */
	uint32_t most;   /* instances of it on one GPU */
	uint32_t size;   /* memory slices */
	uint32_t starts; /* bit N: an instance may begin at memory slice N */
};

struct sim_shape {
	char model[16];
	uint32_t count; /* GPUs in the machine */
	char name[64];
	uint64_t memory;   /* bytes of a GPU, as NVML's total */
	uint64_t reserved; /* bytes of it that no program gets */
	uint64_t context;  /* bytes that one context takes */
	uint32_t major, minor;
	uint32_t sms, cores;
	uint64_t l2, shared;
	uint32_t clock, memory_clock; /* MHz */
	uint32_t bus;
	uint32_t power; /* W */
	uint32_t pcie_generation, pcie_lanes;
	uint32_t device, subsystem;
	enum sim_links links;
	uint32_t link_count;
	uint32_t buses[SIM_MAX_GPUS];
	uint32_t numa[SIM_MAX_GPUS];
	uint32_t on_switch;
	uint32_t profile_count; /* 0: the model has no MIG */
	struct sim_profile profiles[SIM_MAX_PROFILES];
};

/* The shape for MODEL:COUNT, or MODEL for one GPU; false: `why` says what is missing or wrong. */
bool shape_read(struct sim_shape *shape, const char *choice, char *why, size_t size);

/* Whether NVLink connects two GPUs, through a switch or as a pair. */
bool shape_linked(const struct sim_shape *shape, uint32_t a, uint32_t b);

/* The GPU's address on the PCI bus, with a domain of `digits` hexadecimal digits. */
void shape_bus_id(const struct sim_shape *shape, uint32_t gpu, int digits, char *out, size_t size);

#endif
