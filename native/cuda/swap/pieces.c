#include "pieces.h"

#include "aliquot/lock.h"
#include "gate/base.h"
#include "session.h"
#include "spill.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Addresses cost nothing. A range is larger than any GPU's memory, so that one is enough for nearly all
 * programs; under a limit of address space it is as large as can be had. */
#define RANGE_BYTES (UINT64_C(1) << 39)
#define RANGES 64u

struct range {
	CUdeviceptr base;
	uint64_t pages;
	struct piece **of_page; /* NULL: the page is free */
	uint64_t next;          /* where the search for free pages begins */
	uint64_t end;           /* pages from here on were never used */
};

struct pieces {
	struct aliquot_lock lock; /* over all below, and the fields of pieces that change */
	_Atomic uint32_t range_count;
	struct range ranges[RANGES];
	struct piece *slabs;
};

static void *_Atomic page;

static struct pieces *pieces(void)
{
	return atomic_load_explicit(&page, memory_order_acquire);
}

bool pieces_are_there(void)
{
	return pieces() != NULL;
}

void pieces_lock(void)
{
	aliquot_lock(&pieces()->lock);
}

void pieces_unlock(void)
{
	aliquot_unlock(&pieces()->lock);
}

struct piece **pieces_slabs(void)
{
	return &pieces()->slabs;
}

/* --- addresses --------------------------------------------------------------------------------- */

static struct range *range_of(CUdeviceptr address)
{
	struct pieces *all = pieces();
	uint32_t count = all ? atomic_load_explicit(&all->range_count, memory_order_acquire) : 0;
	for (uint32_t i = 0; i < count; i++)
		if (address - all->ranges[i].base < all->ranges[i].pages * PIECE_PAGE)
			return &all->ranges[i];
	return NULL;
}

bool pieces_have(CUdeviceptr address)
{
	return range_of(address) != NULL;
}

struct piece *piece_at(CUdeviceptr address)
{
	const struct range *range = range_of(address);
	return range ? range->of_page[(address - range->base) / PIECE_PAGE] : NULL;
}

static struct piece *first_in(const struct range *range, uint64_t from)
{
	for (uint64_t at = from; at < range->end; at++)
		if (range->of_page[at])
			return range->of_page[at];
	return NULL;
}

struct piece *piece_from(CUdeviceptr address)
{
	struct pieces *all = pieces();
	struct piece *first = NULL;
	for (uint32_t i = 0; all && i < all->range_count; i++) {
		const struct range *range = &all->ranges[i];
		uint64_t from = address <= range->base ? 0 : (address - range->base) / PIECE_PAGE;
		struct piece *piece = first_in(range, from);
		if (piece && piece->address >= address && (!first || piece->address < first->address))
			first = piece;
	}
	return first;
}

/* The first `count` free pages between two pages of the range. */
static bool find_free(const struct range *range, uint64_t from, uint64_t to, uint64_t count,
                      uint64_t *at)
{
	uint64_t start = from;
	for (uint64_t now = from; now < to;) {
		const struct piece *piece = range->of_page[now];
		if (piece)
			start = now = (piece->address + piece->bytes - range->base) / PIECE_PAGE;
		else if (++now - start == count) {
			*at = start;
			return true;
		}
	}
	return false;
}

static void set_pages(const struct range *range, const struct piece *of, struct piece *to)
{
	uint64_t at = (of->address - range->base) / PIECE_PAGE;
	for (uint64_t i = 0; i < of->bytes / PIECE_PAGE; i++)
		range->of_page[at + i] = to;
}

/* Give the piece addresses; false: there are none in the ranges that we have. */
static bool take_addresses(struct piece *piece)
{
	struct pieces *all = pieces();
	uint64_t count = piece->bytes / PIECE_PAGE, at;
	bool found = false;
	aliquot_lock(&all->lock);
	for (uint32_t i = 0; i < all->range_count && !found; i++) {
		struct range *range = &all->ranges[i];
		found = find_free(range, range->next, range->pages, count, &at) ||
		        find_free(range, 0, range->pages, count, &at);
		if (!found)
			continue;
		piece->address = range->base + at * PIECE_PAGE;
		set_pages(range, piece, piece);
		range->next = at + count;
		if (range->end < range->next)
			range->end = range->next;
	}
	aliquot_unlock(&all->lock);
	return found;
}

static void give_addresses(const struct piece *piece)
{
	aliquot_lock(&pieces()->lock);
	set_pages(range_of(piece->address), piece, NULL);
	aliquot_unlock(&pieces()->lock);
}

/* The page table of a range; the kernel gives memory for the parts that are used. */
static struct piece **make_table(uint64_t pages_of_range)
{
	void *table = mmap(NULL, pages_of_range * sizeof(struct piece *), PROT_READ | PROT_WRITE,
	                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return table == MAP_FAILED ? NULL : table;
}

static bool add_range(const struct range *range)
{
	struct pieces *all = pieces();
	aliquot_lock(&all->lock);
	uint32_t count = all->range_count;
	bool fits = count < RANGES;
	if (fits) {
		all->ranges[count] = *range;
		atomic_store_explicit(&all->range_count, count + 1, memory_order_release);
	}
	aliquot_unlock(&all->lock);
	return fits;
}

/* Reserve addresses for at least `bytes`. */
static CUresult reserve(uint64_t bytes)
{
	uint64_t size = bytes > RANGE_BYTES ? bytes : RANGE_BYTES;
	CUdeviceptr base = 0;
	CUresult result;
	while ((result = REAL(cuMemAddressReserve)(&base, size, PIECE_PAGE, 0, 0)) != CUDA_SUCCESS &&
	       size / 2 >= bytes)
		size = size / 2 / PIECE_PAGE * PIECE_PAGE;
	if (result != CUDA_SUCCESS)
		return result;
	struct range range = {.base = base, .pages = size / PIECE_PAGE};
	range.of_page = make_table(range.pages);
	if (range.of_page && add_range(&range))
		return CUDA_SUCCESS;
	if (range.of_page)
		munmap(range.of_page, range.pages * sizeof(struct piece *));
	REAL(cuMemAddressFree)(base, size);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* --- memory ------------------------------------------------------------------------------------ */

static CUmemAllocationProp properties_of(const struct piece *piece)
{
	if (piece->is_on_host)
		return spill_properties(piece->device);
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = piece->device},
	};
}

/* Map memory at the piece's addresses. After an error nothing has changed. */
static CUresult map_memory(const struct piece *piece, CUmemGenericAllocationHandle handle)
{
	CUmemAccessDesc access = {
		.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = piece->device},
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUresult result = REAL(cuMemMap)(piece->address, piece->bytes, 0, handle, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemSetAccess)(piece->address, piece->bytes, &access, 1);
	if (result != CUDA_SUCCESS)
		REAL(cuMemUnmap)(piece->address, piece->bytes);
	return result;
}

CUresult piece_map(struct piece *piece)
{
	CUmemAllocationProp properties = properties_of(piece);
	CUmemGenericAllocationHandle handle;
	CUresult result = REAL(cuMemCreate)(&handle, piece->bytes, &properties, 0);
	if (result != CUDA_SUCCESS)
		return result;
	result = map_memory(piece, handle);
	if (result == CUDA_SUCCESS)
		piece->handle = handle;
	else
		REAL(cuMemRelease)(handle);
	return result;
}

CUresult piece_take_memory(struct piece *piece, struct piece *from)
{
	CUresult result = REAL(cuMemUnmap)(from->address, from->bytes);
	if (result != CUDA_SUCCESS)
		return result;
	result = REAL(cuMemUnmap)(piece->address, piece->bytes);
	if (result == CUDA_SUCCESS && (result = map_memory(piece, from->handle)) != CUDA_SUCCESS)
		map_memory(piece, piece->handle);
	REAL(cuMemRelease)(result == CUDA_SUCCESS ? piece->handle : from->handle);
	if (result == CUDA_SUCCESS)
		piece->handle = from->handle;
	from->handle = 0;
	return result;
}

CUresult piece_unmap(struct piece *piece)
{
	CUresult result = REAL(cuMemUnmap)(piece->address, piece->bytes);
	if (result != CUDA_SUCCESS)
		return result;
	REAL(cuMemRelease)(piece->handle);
	piece->handle = 0;
	return result;
}

CUresult piece_export(const struct piece *piece, int *descriptor)
{
	CUresult result = REAL(cuMemExportToShareableHandle)(descriptor, piece->handle,
	                                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                                                     0);
	if (result == CUDA_SUCCESS)
		fcntl(*descriptor, F_SETFD, FD_CLOEXEC);
	return result;
}

struct piece *piece_make(const struct piece *model, CUresult *result)
{
	struct piece *piece = NULL;
	*result = CUDA_ERROR_OUT_OF_MEMORY;
	if (!session_wiped_memory(&page, sizeof(struct pieces)) || !(piece = calloc(1, sizeof(*piece))))
		return NULL;
	*piece = *model;
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	*result = CUDA_SUCCESS;
	while (*result == CUDA_SUCCESS && !take_addresses(piece))
		*result = reserve(piece->bytes);
	if (*result == CUDA_SUCCESS && (*result = piece_map(piece)) != CUDA_SUCCESS)
		give_addresses(piece);
	gate_restore_capture_mode(mode);
	if (*result == CUDA_SUCCESS)
		return piece;
	free(piece);
	return NULL;
}

/* If the driver does not unmap it, its addresses stay taken, and it is in no list. */
void piece_end(struct piece *piece)
{
	CUstreamCaptureMode mode = gate_relax_capture_mode();
	CUresult result = piece->handle ? piece_unmap(piece) : CUDA_SUCCESS;
	gate_restore_capture_mode(mode);
	if (result != CUDA_SUCCESS)
		return;
	give_addresses(piece);
	free(piece->slab);
	free(piece);
}
