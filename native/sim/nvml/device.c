/* Identity of a device: name, UUID, serial number, PCI address. */
#include "machine/mig.h"
#include "nvml/nvml_sim.h"

#include <stdio.h>
#include <string.h>

static const struct sim_shape *shape(void)
{
	return &nvml.machine.shape;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	NVML_UNIT(unit, device);
	char own[NVML_DEVICE_NAME_V2_BUFFER_SIZE];
	mig_name(&nvml.machine, unit, own, sizeof(own));
	return nvml_copy_text(name, length, own);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	NVML_UNIT(unit, device);
	char own[48];
	machine_uuid_text(&nvml.machine, unit, own);
	return nvml_copy_text(uuid, length, own);
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *out)
{
	NVML_UNIT(unit, device);
	NVML_NEED(out);
	*out = nvml_index(unit);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
	NVML_DEVICE(index, device);
	return nvmlDeviceGetIndex(device, minor);
}

nvmlReturn_t nvmlDeviceGetModuleId(nvmlDevice_t device, unsigned int *module)
{
	NVML_DEVICE(index, device);
	return nvmlDeviceGetIndex(device, module);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length)
{
	NVML_DEVICE(index, device);
	uint8_t uuid[16];
	uint32_t number;
	char own[32];
	machine_uuid(&nvml.machine, index, uuid);
	memcpy(&number, uuid, sizeof(number));
	snprintf(own, sizeof(own), "165%010u", number);
	return nvml_copy_text(serial, length, own);
}

nvmlReturn_t nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
	NVML_DEVICE(index, device);
	NVML_NEED(board);
	*board = shape()->buses[index] << 8;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand)
{
	NVML_DEVICE(index, device);
	NVML_NEED(brand);
	*brand = shape()->major < 8 ? NVML_BRAND_TESLA : NVML_BRAND_NVIDIA;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *architecture)
{
	NVML_DEVICE(index, device);
	NVML_NEED(architecture);
	*architecture = shape()->major >= 9   ? NVML_DEVICE_ARCH_HOPPER
	                : shape()->minor == 9 ? NVML_DEVICE_ARCH_ADA
	                : shape()->major == 8 ? NVML_DEVICE_ARCH_AMPERE
	                                      : NVML_DEVICE_ARCH_TURING;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	NVML_DEVICE(index, device);
	NVML_NEED(pci);
	memset(pci, 0, sizeof(*pci));
	shape_bus_id(shape(), index, 8, pci->busId, sizeof(pci->busId));
	shape_bus_id(shape(), index, 4, pci->busIdLegacy, sizeof(pci->busIdLegacy));
	pci->bus = shape()->buses[index];
	pci->pciDeviceId = shape()->device;
	pci->pciSubSystemId = shape()->subsystem;
	return NVML_SUCCESS;
}

/* Older versions of the structure end after the legacy bus id and the numbers. */
struct old_pci {
	char busId[NVML_DEVICE_PCI_BUS_ID_BUFFER_V2_SIZE];
	unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
	unsigned int reserved[4];
};

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	nvmlPciInfo_t now;
	NVML_NEED(pci);
	nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &now);
	if (result)
		return result;
	struct old_pci old = {.bus = now.bus,
	                      .pciDeviceId = now.pciDeviceId,
	                      .pciSubSystemId = now.pciSubSystemId};
	memcpy(old.busId, now.busIdLegacy, sizeof(old.busId));
	memcpy(pci, &old, sizeof(old));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
	return nvmlDeviceGetPciInfo_v2(device, pci);
}

nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci)
{
	NVML_DEVICE(index, device);
	NVML_NEED(pci);
	if (pci->version != nvmlPciInfoExt_v1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	pci->domain = 0;
	pci->bus = shape()->buses[index];
	pci->device = 0;
	pci->pciDeviceId = shape()->device;
	pci->pciSubSystemId = shape()->subsystem;
	pci->baseClass = 3;
	pci->subClass = 2;
	shape_bus_id(shape(), index, 8, pci->busId, sizeof(pci->busId));
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
	NVML_DEVICE(index, device);
	NVML_NEED(major && minor);
	*major = (int)shape()->major;
	*minor = (int)shape()->minor;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
	NVML_WHOLE(index, device);
	NVML_NEED(cores);
	*cores = shape()->sms * shape()->cores;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *width)
{
	NVML_DEVICE(index, device);
	NVML_NEED(width);
	*width = shape()->bus;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length)
{
	NVML_DEVICE(index, device);
	return nvml_copy_text(version, length, "00.00.00.00.00");
}

nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, unsigned int *multi)
{
	NVML_DEVICE(index, device);
	NVML_NEED(multi);
	*multi = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
	NVML_DEVICE(first, a);
	NVML_DEVICE(second, b);
	NVML_NEED(same);
	*same = first == second;
	return NVML_SUCCESS;
}
