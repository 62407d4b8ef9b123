/* Pieces: physical memory at addresses that stay the same. The GPU's can be exported; the host's cannot.
 *
 * The addresses come from large ranges that are reserved once. Each page of such a range is free or belongs
 * to one piece. All of it lies in memory that a fork wipes (session.h): a child has no pieces.
 *
 * Guarantees: no lock is held across a call into the driver; the addresses of a piece are free only after
 * its memory is unmapped. */
#ifndef ALIQUOT_PIECES_H
#define ALIQUOT_PIECES_H

#include "hooked.h"
#include "slab.h"

#include <stdbool.h>
#include <stdint.h>

#define PIECE_PAGE (UINT64_C(2) << 20)

struct piece {
	CUdeviceptr address;
	uint64_t bytes;
	CUmemGenericAllocationHandle handle; /* 0: its memory is away */
	CUdevice device;
	CUcontext context;  /* it ends with this context */
	const void *ending; /* the call that destroys that context now; NULL: none */
	bool is_ready;      /* it is mapped, or away */
	bool is_fixed;      /* it cannot leave: others may have it mapped */
	uint64_t key;       /* a process that knows it may open the piece (sharing.c); 0: none may */
	uint32_t exports;   /* calls that make a descriptor of it now: it ends with the last one */
	bool is_on_host;    /* its memory is the host's (spill.h) */
	uint64_t block_id;  /* CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID; 0: not asked for yet */
	uint64_t asked;     /* bytes of its one allocation; 0: it has none, or a slab */
	uint64_t shadow;    /* of its one allocation: swappable.h */
	struct slab *slab;  /* NULL: it has one allocation */
	struct piece *next_slab;
};

/* Make a piece like `model`, which has its bytes, device, context and place, and map it. It is not in a list of
 * slabs and has no allocation yet. Returns NULL, and the driver's answer in *result, if there is no
 * memory. */
struct piece *piece_make(const struct piece *model, CUresult *result);

/* Unmap and release a piece that no list and no other thread has, and free its addresses. */
void piece_end(struct piece *piece);

/* The driver's calls for a piece's memory. After an error nothing has changed. */
CUresult piece_map(struct piece *piece);
CUresult piece_unmap(struct piece *piece);
/* Give a piece the memory of another of the same size in place of its own. The other has none after it, whatever
 * the answer. */
CUresult piece_take_memory(struct piece *piece, struct piece *from);
/* A descriptor of its memory. No program that this one starts has it: the memory would stay on the GPU with it. */
CUresult piece_export(const struct piece *piece, int *descriptor);

/* Whether an address is in a reserved range. Takes no lock. */
bool pieces_have(CUdeviceptr address);

void pieces_lock(void);
void pieces_unlock(void);
/* With the lock: the piece at an address (NULL: none), and the first one from an address on. */
struct piece *piece_at(CUdeviceptr address);
struct piece *piece_from(CUdeviceptr address);
/* With the lock: the list of all slabs. Precondition: pieces_are_there. */
struct piece **pieces_slabs(void);
/* Whether this process ever made a piece. */
bool pieces_are_there(void);

#endif
