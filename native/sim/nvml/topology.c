/* Topology of a device: PCIe, NVLink, NUMA node, and the path between two devices. */
#include "nvml/nvml_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWITCH_BUS 0x05u /* PCI bus of the first NVSwitch */

static const struct sim_shape *shape(void)
{
	return &nvml.machine.shape;
}

static nvmlReturn_t number(nvmlDevice_t device, unsigned int *out, unsigned int value)
{
	NVML_DEVICE(index, device);
	NVML_NEED(out);
	*out = value;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
	return number(device, generation, shape()->pcie_generation);
}

nvmlReturn_t nvmlDeviceGetGpuMaxPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
	return number(device, generation, shape()->pcie_generation);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkGeneration(nvmlDevice_t device, unsigned int *generation)
{
	return number(device, generation, shape()->pcie_generation);
}

nvmlReturn_t nvmlDeviceGetMaxPcieLinkWidth(nvmlDevice_t device, unsigned int *width)
{
	return number(device, width, shape()->pcie_lanes);
}

nvmlReturn_t nvmlDeviceGetCurrPcieLinkWidth(nvmlDevice_t device, unsigned int *width)
{
	return number(device, width, shape()->pcie_lanes);
}

nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t device, unsigned int *count)
{
	return number(device, count, 0);
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, nvmlPcieUtilCounter_t counter,
                                         unsigned int *kilobytes)
{
	NVML_NEED(counter < NVML_PCIE_UTIL_COUNT);
	return number(device, kilobytes, 0);
}

nvmlReturn_t nvmlDeviceGetPcieSpeed(nvmlDevice_t device, unsigned int *speed)
{
	return number(device, speed, 1250u << shape()->pcie_generation);
}

static nvmlGpuTopologyLevel_t level(uint32_t a, uint32_t b)
{
	if (a == b)
		return NVML_TOPOLOGY_INTERNAL;
	if (shape()->numa[a] != shape()->numa[b])
		return NVML_TOPOLOGY_SYSTEM;
	uint32_t group = shape()->on_switch ? shape()->on_switch : 1;
	return a / group == b / group ? NVML_TOPOLOGY_SINGLE : NVML_TOPOLOGY_NODE;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t first, nvmlDevice_t second,
                                                 nvmlGpuTopologyLevel_t *out)
{
	NVML_DEVICE(a, first);
	NVML_DEVICE(b, second);
	NVML_NEED(out);
	*out = level(a, b);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t within,
                                              unsigned int *count, nvmlDevice_t *out)
{
	NVML_DEVICE(index, device);
	NVML_NEED(count);
	unsigned int n = 0;
	for (uint32_t i = 0; i < shape()->count; i++) {
		if (i == index || level(index, i) != within)
			continue;
		if (out && n < *count)
			out[n] = (nvmlDevice_t)&nvml.devices[i];
		n++;
	}
	*count = n;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t first, nvmlDevice_t second,
                                    nvmlGpuP2PCapsIndex_t which, nvmlGpuP2PStatus_t *status)
{
	NVML_DEVICE(a, first);
	NVML_DEVICE(b, second);
	NVML_NEED(status && which < NVML_P2P_CAPS_INDEX_UNKNOWN);
	bool linked = shape_linked(shape(), a, b);
	*status = linked || which == NVML_P2P_CAPS_INDEX_PCI ? NVML_P2P_STATUS_OK
	                                                     : NVML_P2P_STATUS_NOT_SUPPORTED;
	return NVML_SUCCESS;
}

/* Whether the GPU has that link, and it is connected. */
static nvmlReturn_t link_of(nvmlDevice_t device, unsigned int link, uint32_t *index)
{
	NVML_DEVICE(own, device);
	NVML_NEED(link < NVML_NVLINK_MAX_LINKS);
	*index = own;
	bool alone = shape()->links == SIM_PAIRS && (own ^ 1) >= shape()->count;
	return shape()->links == SIM_PCIE || alone || link >= shape()->link_count
			   ? NVML_ERROR_NOT_SUPPORTED
			   : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link,
                                      nvmlEnableState_t *active)
{
	uint32_t index;
	NVML_NEED(active);
	nvmlReturn_t result = link_of(device, link, &index);
	if (!result)
		*active = NVML_FEATURE_ENABLED;
	return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link,
                                        unsigned int *version)
{
	uint32_t index;
	NVML_NEED(version);
	nvmlReturn_t result = link_of(device, link, &index);
	if (!result)
		*version = shape()->major >= 9 ? 4 : 3;
	return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int link,
                                           nvmlNvLinkCapability_t which, unsigned int *capability)
{
	uint32_t index;
	NVML_NEED(capability && which < NVML_NVLINK_CAP_COUNT);
	nvmlReturn_t result = link_of(device, link, &index);
	if (!result)
		*capability = which == NVML_NVLINK_CAP_P2P_SUPPORTED;
	return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                 nvmlIntNvLinkDeviceType_t *type)
{
	uint32_t index;
	NVML_NEED(type);
	nvmlReturn_t result = link_of(device, link, &index);
	if (!result)
		*type = shape()->links == SIM_NVSWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH
		                                       : NVML_NVLINK_DEVICE_TYPE_GPU;
	return result;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                 nvmlPciInfo_t *pci)
{
	uint32_t index;
	NVML_NEED(pci);
	nvmlReturn_t result = link_of(device, link, &index);
	if (result)
		return result;
	if (shape()->links == SIM_PAIRS)
		return nvmlDeviceGetPciInfo_v3((nvmlDevice_t)&nvml.devices[index ^ 1], pci);
	memset(pci, 0, sizeof(*pci));
	pci->bus = SWITCH_BUS + link % 4;
	pci->pciDeviceId = 0x22a310de;
	snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", pci->bus);
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:%02X:00.0", pci->bus);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link,
                                              nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, pci);
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                             nvmlNvLinkErrorCounter_t which,
                                             unsigned long long *count)
{
	uint32_t index;
	NVML_NEED(count && which < NVML_NVLINK_ERROR_COUNT);
	nvmlReturn_t result = link_of(device, link, &index);
	if (!result)
		*count = 0;
	return result;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
	NVML_DEVICE(index, device);
	NVML_NEED(node);
	*node = shape()->numa[index];
	return NVML_SUCCESS;
}

/* Sets the bits of a list in Linux's format, such as `0-3,8`. */
static void set_list(const char *list, unsigned long *set, unsigned int words)
{
	unsigned int bits = 8 * sizeof(*set);
	while (*list) {
		char *end;
		unsigned long first = strtoul(list, &end, 10), last = first;
		if (end == list)
			break;
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (unsigned long i = first; i <= last && i / bits < words; i++)
			set[i / bits] |= 1ul << i % bits;
		list = *end == ',' ? end + 1 : end;
	}
}

static void read_list(const char *path, unsigned long *set, unsigned int words)
{
	char text[256] = "";
	FILE *file = fopen(path, "re");
	memset(set, 0, words * sizeof(*set));
	if (file && fgets(text, sizeof(text), file))
		set_list(text, set, words);
	if (file)
		fclose(file);
}

/* The CPUs of the GPU's NUMA node; all CPUs if the host has no such node. */
nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
	NVML_DEVICE(index, device);
	NVML_NEED(set && words);
	char path[64];
	unsigned long any = 0;
	snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist", shape()->numa[index]);
	read_list(path, set, words);
	for (unsigned int i = 0; i < words; i++)
		any |= set[i];
	if (!any)
		read_list("/sys/devices/system/cpu/online", set, words);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words,
                                                 unsigned long *set, nvmlAffinityScope_t scope)
{
	NVML_NEED(scope == NVML_AFFINITY_SCOPE_NODE || scope == NVML_AFFINITY_SCOPE_SOCKET);
	return nvmlDeviceGetCpuAffinity(device, words, set);
}

nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words,
                                         unsigned long *set, nvmlAffinityScope_t scope)
{
	NVML_DEVICE(index, device);
	NVML_NEED(set && words && scope <= NVML_AFFINITY_SCOPE_SOCKET);
	memset(set, 0, words * sizeof(*set));
	set[0] = 1ul << shape()->numa[index];
	return NVML_SUCCESS;
}
