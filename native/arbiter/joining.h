/* How processes join a grant: HELLO, and recovery when the arbiter starts.
 *
 * A process that execs another program (seen by its image) uses nothing of the old one. Its slot is
 * reset when the new program sends HELLO, and freed when NVML no longer lists the process. A second
 * HELLO of the same program means that the answer was lost if nothing is counted for the process;
 * otherwise it is refused, because what is counted is in use.
 *
 * Each HELLO gets new pages of credit and work: the old pages belong to another program, or nobody
 * ever saw them.
 */
#ifndef ARBITER_JOINING_H
#define ARBITER_JOINING_H

#include "aliquot/protocol.h"
#include "processes.h"

/* What a process that has joined receives. */
struct join_reply {
	uint32_t slot;
	struct process_page_fds pages; /* the caller's to close */
};

/* The process that sends HELLO again although it may already use a GPU: NVML must be asked before
 * joining_join. NULL: there is nothing to ask. */
struct process *joining_unclear(struct grant *grant, const struct identity *who);

/* Takes the sender out of its grant if it runs another program than it joined with. For a HELLO that is
 * refused: nobody shall wait for what the old program had, or keep its memory. */
void joining_drop_old_program(const struct grant *grant, const struct identity *who);

/* Takes ownership of who->pidfd in either case. `since`: when HELLO came. 0 and *reply; or the
 * refusal, with *error set to -errno if that says more. */
enum aliquot_refusal joining_join(struct grant *grant, const struct identity *who,
                                  int32_t inner_pid, uint64_t since, struct join_reply *reply,
                                  int *error);

/* Recovers the processes that `limits` names. 0, or -errno. */
int joining_recover(struct grant *grant);

#endif
