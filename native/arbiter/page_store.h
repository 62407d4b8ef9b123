/* The credit and work pages of all processes, stored by the arbiter's parent in case the arbiter dies.
 *
 * The arbiter (the child) hands each new set of pages (process_pages.h) to its parent before it seals
 * them, and reports when it drops them. When the child dies, the parent opens every gate at once, so
 * that no work waits for a missing arbiter. The next child is a fork of the parent: it has the
 * mappings from the start, and adopts the pages of each process that it recovers. Tenants notice
 * nothing.
 *
 * Parent and child talk over a socketpair. Each child gets a new one, so no answer to a dead child
 * reaches the next. The child waits only for the answer to a new set of pages, and at most a second:
 * if the parent is stopped, new processes are refused and nobody else waits.
 *
 * Guarantee: pages that a tenant can have are in the parent's list.
 */
#ifndef ARBITER_PAGE_STORE_H
#define ARBITER_PAGE_STORE_H

#include "process_pages.h"

/* The process that the pages belong to. A process has one grant and one slot. After an exec it gets
 * new pages with a higher number. */
struct page_owner {
	char grant[ALIQUOT_NAME_SIZE];
	uint32_t slot;
	int32_t pid;
	uint64_t start_time;
};

struct stored_pages {
	struct stored_pages *next;
	uint64_t number; /* never used twice */
	struct page_owner owner;
	struct process_pages pages;
	bool adopted; /* a process of this child uses them */
};

struct page_store {
	struct stored_pages *all;
	struct stored_pages *dropped; /* the child's: not yet reported to the parent */
	uint64_t last_number;
	int parent_end, child_end; /* -1: none */
};

void page_store_init(struct page_store *store);
/* Unmaps all pages as they are, and closes the sockets. */
void page_store_close(struct page_store *store);

/* For the parent. */

/* Makes a new socketpair, before each start of a child. 0, or -errno. */
int page_store_prepare(struct page_store *store);
/* After the fork. */
void page_store_be_parent(struct page_store *store);
/* Handles all messages that wait at `parent_end`. */
void page_store_serve(struct page_store *store);
/* After the child's death: opens all gates; returns the number of processes. */
unsigned page_store_open_gates(struct page_store *store);

/* For the child. */

void page_store_be_child(struct page_store *store);
/* Makes new pages, stores and seals them. *fds: their descriptors. 0, or -errno. */
int page_store_add(struct page_store *store, const struct page_owner *owner, uint32_t slices,
                   struct stored_pages **out, struct process_page_fds *fds);
/* The newest pages of that process, marked as adopted; NULL: there are none. */
struct stored_pages *page_store_adopt(struct page_store *store, const struct page_owner *owner,
                                      uint32_t slices);
/* Opens the gates and drops the pages; the pointer is invalid afterwards. */
void page_store_drop(struct page_store *store, struct stored_pages *stored);
/* Drops all pages that no process has adopted. */
void page_store_drop_unadopted(struct page_store *store);

#endif
