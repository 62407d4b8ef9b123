/* The two pages of one process, credit and work (aliquot/credit.h), as the arbiter has them.
 *
 * They are files of the grant's private directory (private_directory.h) with a number that the grant
 * uses once: `credit.N` and `work.N`. So they outlive the arbiter, any process of ours can open
 * all gates by walking the directory, and the next arbiter maps the pages again that the record names.
 *
 * The process can only read `credit`. It can write anything to `work`, and truncate it: readers bound
 * their loops, and a missing page reads as zeroes (mapping.h).
 */
#ifndef ARBITER_PROCESS_PAGES_H
#define ARBITER_PROCESS_PAGES_H

#include "aliquot/credit.h"
#include "mapping.h"

#include <stdbool.h>

struct process_pages {
	struct aliquot_credit *credit; /* NULL: not mapped */
	const struct aliquot_work_slice *work;
	uint32_t slices;
	uint32_t number;
	struct mapping credit_mapping, work_mapping;
};

/* Their descriptors for the process, in the order in which WELCOME carries them. */
struct process_page_fds {
	int credit, work;
};

/* Makes and maps both in the grant's private directory, filled in and with every gate open. 0, or
 * -errno. */
int process_pages_make(struct process_pages *pages, int directory, uint32_t number, uint32_t slices,
                       struct process_page_fds *fds);
void process_pages_close_fds(const struct process_page_fds *fds);

/* Maps those that an earlier arbiter made. Returns why it cannot, or NULL. */
const char *process_pages_open(struct process_pages *pages, int directory, uint32_t number,
                               uint32_t slices);

/* Takes back what the process added to its work page. True: it was longer. */
bool process_pages_trim(const struct process_pages *pages, int directory);

/* Unmaps them; the files stay. */
void process_pages_close(struct process_pages *pages);

/* Opens every gate, unmaps the pages and removes the files. */
void process_pages_remove(struct process_pages *pages, int directory);

/* Removes all files of pages in the directory but those whose numbers `is_used` knows; opens their
 * gates first. */
void process_pages_remove_others(int directory, bool (*is_used)(uint32_t number, void *context),
                                 void *context);

/* Opens every gate of all processes of a grant; returns how many there are. The processes neither
 * send RING nor close quanta early. */
unsigned process_pages_open_gates_of(int directory);

#endif
