/* Processes that use a GPU inside a grant's cgroup and have not joined the grant.
 *
 * Root in a container can bring a driver library of its own, which no stand-in holds. So this is
 * detected: NVML lists the process, the kernel says in which cgroup it is. What it uses is charged
 * to the grant as soon as it is seen: less is free for the grant's own programs. `status` names it.
 * If it is still there after 500 ms the log names it too, and with --unjoined end it is killed.
 *
 * The cgroup of a grant is told by `set-cgroup`, or learned from a process that has joined a kept
 * grant from another pid namespace, if the cgroup has nobody else's processes.
 *
 * No program that keeps the rules is ended: a process joins before it has a context, so one that NVML
 * lists and that has joined is never here. Only a process that NVML has listed as computing in two
 * snapshots at least 500 ms apart is killed, through a pidfd of the same process, and only in a
 * cgroup that was told. A grant whose record cannot be read has no unjoined processes: the arbiter does
 * not know which processes have joined it. Files that a tenant can break change nothing here.
 */
#ifndef ARBITER_UNJOINED_H
#define ARBITER_UNJOINED_H

#include "grant.h"
#include "identity.h"
#include "json.h"
#include "processes.h"

struct unjoined {
	struct unjoined *next;
	struct grant *grant;
	int32_t pid;
	uint64_t start_time;
	uint64_t since; /* when it was first seen */
	bool computes;
	bool reported, ended;
	uint32_t slices;                  /* bit per slice whose GPU lists it */
	uint64_t bytes[ALIQUOT_MAX_GPUS]; /* by slice */
	char name[PROCESS_NAME_SIZE];
};

/* The grant's cgroup is that one. False and `failure`: the arbiter itself is in it. */
bool unjoined_set_cgroup(struct grant *grant, const char *path, struct failure *failure);

/* Forgets a told cgroup that has been removed: its container has ended, and the next one of the same
 * grant has another cgroup, which is to be told. */
void unjoined_forget_removed(struct grant *grant);

/* A process has joined, or was recovered: learns the cgroup of its grant. */
void unjoined_on_join(struct process *process);

/* There is a new snapshot of that GPU. */
void unjoined_on_snapshot(struct arbiter *arbiter, unsigned gpu);

void unjoined_on_timer(struct timer *timer);

/* Whether a grant has a cgroup, so that snapshots are needed also while no process is live. */
bool unjoined_is_watching(const struct arbiter *arbiter);

/* The grant is being closed. */
void unjoined_forget(struct grant *grant);

/* Writes the grant's `cgroup` and `unjoined`. */
void unjoined_write(const struct grant *grant, struct json *out);

#endif
