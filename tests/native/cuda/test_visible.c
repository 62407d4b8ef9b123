/* CUDA_VISIBLE_DEVICES within a grant, as the driver reads it outside one. */
#include "visible.h"

#include "../check.h"

#include <string.h>

#define A "GPU-aa000000-0000-0000-0000-000000000000"
#define B "GPU-bb000000-0000-0000-0000-000000000000"
#define C "GPU-bc000000-0000-0000-0000-000000000000"

static struct aliquot_limits limits = {
	.slice_count = 3,
	.slices = {{.uuid = {0xaa}, .pci_bus_id = "00000000:41:00.0"},
	           {.uuid = {0xbb}, .pci_bus_id = "00000000:01:00.0"},
	           {.uuid = {0xbc}, .pci_bus_id = "00000000:21:00.0"}},
};

static const struct {
	const char *wanted, *order, *seen;
} cases[] = {
	{NULL, NULL, A "," B "," C},
	{NULL, "FASTEST_FIRST", A "," B "," C},
	{NULL, "PCI_BUS_ID", B "," C "," A},
	{"0", NULL, A},
	{"0", "PCI_BUS_ID", B},
	{"2,0", NULL, C "," A},
	{" 1", NULL, B},
	{"0x1", NULL, B},
	{"+1,2", NULL, B "," C},
	{A, NULL, A},
	{"GPU-aa", NULL, A},
	{"GPU-b", NULL, ""}, /* the beginning of two */
	{"GPU-bb,GPU-aa", NULL, B "," A},
	{"0,7,1", NULL, A}, /* what follows an unknown one is not seen */
	{"7,0", NULL, ""},
	{"-1", NULL, ""},
	{"", NULL, ""},
	{"NoDevFiles", NULL, ""},
	{"GPU-", NULL, ""},
	{"gpu-aa", NULL, ""},
	{"GPU-ff", NULL, ""},
	{"0,", NULL, A},
	{"0,0", NULL, A "," A}, /* the driver refuses this, and so it shall */
	{"0,1,2,0,1,2,0", NULL, A "," B "," C "," A},
};

int main(void)
{
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		char seen[VISIBLE_SIZE];
		visible_devices(&limits, cases[i].wanted, cases[i].order, seen);
		if (strcmp(seen, cases[i].seen) != 0)
			fprintf(stderr, "case %u: %s\n", i, seen);
		CHECK(strcmp(seen, cases[i].seen) == 0);
	}
	return 0;
}
