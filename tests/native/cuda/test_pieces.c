/* Pieces over a driver that remembers what it was told and may fail at any call. */
#include "pieces.h"

#include "../check.h"
#include "session.h"
#include "swappable.h"

#include <stdlib.h>

enum { PIECES = 200, MOST_HANDLES = 100000, DEVICE = 3, SIZES = 5 };

#define CONTEXT ((CUcontext)64)
#define LARGEST_RANGE (UINT64_C(64) << 30) /* as under a limit of address space */

/* --- the driver -------------------------------------------------------------------------------- */

struct memory {
	uint64_t bytes;
	CUdeviceptr mapped_at;
	bool lives, accessible;
};

static struct memory memories[MOST_HANDLES];
static unsigned handles, calls, fails_at, open_descriptors;
static CUdeviceptr reserved_end = UINT64_C(1) << 40;

static bool fails(void)
{
	return ++calls == fails_at;
}

static CUresult address_reserve(CUdeviceptr *address, size_t bytes, size_t alignment,
                                CUdeviceptr wish, unsigned long long flags)
{
	CHECK(alignment == PIECE_PAGE && wish == 0 && flags == 0 && bytes % PIECE_PAGE == 0);
	if (fails() || bytes > LARGEST_RANGE)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*address = reserved_end;
	reserved_end += bytes + (UINT64_C(1) << 30); /* ranges do not touch */
	return CUDA_SUCCESS;
}

static CUresult address_free(CUdeviceptr address, size_t bytes)
{
	(void)address, (void)bytes;
	return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *properties, unsigned long long flags)
{
	CHECK(flags == 0 && properties->location.id == DEVICE);
	CHECK(properties->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (fails())
		return CUDA_ERROR_OUT_OF_MEMORY;
	*handle = ++handles;
	CHECK(handles < MOST_HANDLES);
	memories[handles] = (struct memory){.bytes = bytes, .lives = true};
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct memory *memory = &memories[handle];
	CHECK(memory->lives && memory->bytes == bytes && offset == 0 && flags == 0);
	for (unsigned i = 1; i <= handles; i++)
		CHECK(!memories[i].mapped_at || memories[i].mapped_at + memories[i].bytes <= address ||
		      address + bytes <= memories[i].mapped_at);
	if (fails())
		return CUDA_ERROR_INVALID_VALUE;
	memory->mapped_at = address;
	return CUDA_SUCCESS;
}

static struct memory *memory_at(CUdeviceptr address)
{
	for (unsigned i = handles; i > 0; i--)
		if (memories[i].mapped_at == address)
			return &memories[i];
	return NULL;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *access,
                           size_t count)
{
	struct memory *memory = memory_at(address);
	CHECK(memory && memory->bytes == bytes && count == 1);
	CHECK(access->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE && access->location.id == DEVICE);
	if (fails())
		return CUDA_ERROR_INVALID_VALUE;
	memory->accessible = true;
	return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes)
{
	struct memory *memory = memory_at(address);
	CHECK(memory && memory->bytes == bytes);
	memory->mapped_at = 0;
	memory->accessible = false;
	return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	CHECK(memories[handle].lives && !memories[handle].mapped_at);
	memories[handle].lives = false;
	return CUDA_SUCCESS;
}

static CUresult export(void *descriptor, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
	CHECK(memories[handle].lives && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && flags == 0);
	if (fails())
		return CUDA_ERROR_OPERATING_SYSTEM;
	*(int *)descriptor = (int)handle;
	open_descriptors++;
	return CUDA_SUCCESS;
}

static unsigned living(void)
{
	unsigned count = 0;
	for (unsigned i = 1; i <= handles; i++)
		count += memories[i].lives;
	return count;
}

void *forward_real[SLOT_COUNT];

static void make_driver(void)
{
	forward_real[SLOT_cuMemAddressReserve] = address_reserve;
	forward_real[SLOT_cuMemAddressFree] = address_free;
	forward_real[SLOT_cuMemCreate] = create;
	forward_real[SLOT_cuMemMap] = map;
	forward_real[SLOT_cuMemSetAccess] = set_access;
	forward_real[SLOT_cuMemUnmap] = unmap;
	forward_real[SLOT_cuMemRelease] = release;
	forward_real[SLOT_cuMemExportToShareableHandle] = export;
}

/* --- what else pieces need --------------------------------------------------------------------- */

void *session_wiped_memory(void *_Atomic *where, size_t size)
{
	if (!*where)
		*where = calloc(1, size);
	return *where;
}

const struct aliquot_limits *session_limits(void)
{
	return NULL;
}

uint64_t session_free_bytes(uint32_t slice)
{
	(void)slice;
	return 0;
}

bool session_reserve(uint32_t slice, uint64_t bytes)
{
	(void)slice, (void)bytes;
	return false;
}

void session_release(uint32_t slice, uint64_t bytes)
{
	(void)slice, (void)bytes;
}

void session_tie(enum aliquot_tie tie)
{
	(void)tie;
}

void forward_say(const char *format, ...)
{
	(void)format;
}

CUstreamCaptureMode gate_relax_capture_mode(void);
void gate_restore_capture_mode(CUstreamCaptureMode mode);

CUstreamCaptureMode gate_relax_capture_mode(void)
{
	return CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void gate_restore_capture_mode(CUstreamCaptureMode mode)
{
	CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* --- the tests --------------------------------------------------------------------------------- */

static struct piece *make(uint64_t bytes)
{
	CUresult result;
	struct piece model = {.bytes = bytes, .device = DEVICE, .context = CONTEXT};
	struct piece *piece = piece_make(&model, &result);
	CHECK((piece != NULL) == (result == CUDA_SUCCESS));
	if (piece)
		piece->is_ready = true;
	return piece;
}

static bool is_whole(const struct piece *piece)
{
	const struct memory *memory = memory_at(piece->address);
	return memory && memory->lives && memory->accessible && memory->bytes == piece->bytes &&
	       piece_at(piece->address) == piece &&
	       piece_at(piece->address + piece->bytes - 1) == piece;
}

/* A range has 64 GiB here: these do not fit into one. */
static const uint64_t sizes[SIZES] = {PIECE_PAGE, 3 * PIECE_PAGE, UINT64_C(1) << 30,
                                      UINT64_C(20) << 30, UINT64_C(40) << 30};

static void test_addresses_never_overlap(void)
{
	struct piece *pieces[PIECES] = {0};
	for (unsigned round = 0; round < 20000; round++) {
		struct piece **one = &pieces[random() % PIECES];
		if (*one) {
			CHECK(is_whole(*one));
			piece_end(*one);
			*one = NULL;
		} else {
			/* More pieces of 40 GiB than ranges would take addresses for ever. */
			unsigned most = random() % 20 ? 3 : SIZES;
			*one = make(sizes[(unsigned long)random() % most]);
			CHECK(*one);
		}
		if (handles > MOST_HANDLES - 100)
			break;
	}
	for (unsigned i = 0; i < PIECES; i++)
		if (pieces[i])
			piece_end(pieces[i]);
	CHECK(living() == 0);
	CHECK(swappable_pieces(0, &(struct swappable_piece){0}, 1) == 0);
}

static void test_a_call_that_fails_leaves_nothing(void)
{
	unsigned failed = 0;
	for (fails_at = 1; fails_at < 10; fails_at++) {
		unsigned before = living();
		calls = 0;
		struct piece *piece = make(PIECE_PAGE);
		CHECK(living() == before + (piece != NULL));
		failed += !piece;
		if (piece)
			piece_end(piece);
	}
	CHECK(failed == 3); /* create, map, set access */
	fails_at = 0;
}

static void test_memory_leaves_and_returns_at_its_address(void)
{
	struct piece *first = make(PIECE_PAGE), *fixed = make(PIECE_PAGE), *last = make(5 * PIECE_PAGE);
	struct swappable_piece list[4];
	int descriptor;
	fixed->is_fixed = true;
	CHECK(swappable_pieces(0, list, 4) == 2 && swappable_pieces(1, list + 2, 2) == 1);
	CHECK(list[0].address == first->address && list[1].address == last->address);
	CHECK(list[1].bytes == last->bytes && list[2].address == last->address);

	CUdeviceptr address = last->address;
	CHECK(swappable_bring_back(address, &descriptor) == CUDA_ERROR_INVALID_VALUE);
	CHECK(swappable_export(address, &descriptor) == CUDA_SUCCESS);
	CHECK(swappable_take_away(address) == CUDA_SUCCESS);
	CHECK(living() == 2 && memory_at(address) == NULL);
	CHECK(swappable_take_away(address) == CUDA_ERROR_INVALID_VALUE);
	CHECK(swappable_export(address, &descriptor) == CUDA_ERROR_INVALID_VALUE);
	CHECK(swappable_pieces(0, list, 4) == 2);
	/* The addresses stay taken. */
	struct piece *other = make(PIECE_PAGE);
	CHECK(other->address - address >= last->bytes);
	piece_end(other);

	unsigned failures = 0;
	for (fails_at = 1;; fails_at++) {
		calls = 0;
		if (swappable_bring_back(address, &descriptor) == CUDA_SUCCESS)
			break;
		failures++;
		CHECK(living() == 2 && memory_at(address) == NULL);
	}
	CHECK(failures == 4); /* create, map, set access, export */
	fails_at = 0;
	CHECK(is_whole(last) && descriptor == (int)last->handle);
	CHECK(swappable_take_away(fixed->address) == CUDA_ERROR_INVALID_VALUE);
	CHECK(swappable_take_away(last->address + PIECE_PAGE) == CUDA_ERROR_INVALID_VALUE);

	/* A piece that is away ends without memory. */
	CHECK(swappable_take_away(first->address) == CUDA_SUCCESS);
	piece_end(first);
	piece_end(fixed);
	piece_end(last);
	CHECK(living() == 0);
}

int main(void)
{
	srandom(17);
	make_driver();
	test_addresses_never_overlap();
	test_a_call_that_fails_leaves_nothing();
	test_memory_leaves_and_returns_at_its_address();
	return 0;
}
