/* Who a process is, by the kernel's word.
 *
 * A pid alone names whoever has it now; a pid and its start time name one process for as long as
 * the machine is up; a pidfd says when that process is dead. Nothing here trusts what a process
 * says.
 */
#ifndef ARBITER_IDENTITY_H
#define ARBITER_IDENTITY_H

#include <stdbool.h>
#include <stdint.h>

#define PROCESS_NAME_SIZE 16 /* the kernel's own length of a task's name */

/* The program that a process runs, which exec changes and nothing else does: where the kernel put
 * it. All zero: the kernel does not say. */
struct image {
	uint64_t start_code, end_code, start_stack; /* /proc/PID/stat's fields 26 to 28 */
};

struct identity {
	int32_t pid;
	uint32_t uid;
	uint64_t start_time; /* /proc/PID/stat's field 22 */
	struct image image;
	int pidfd; /* the holder's to close */
};

/* The process that connected `socket`. 0; -ESRCH: it is dead; -EXDEV: it is in a pid namespace that
 * this process does not see; another -errno: the kernel could not tell. */
int identity_of_peer(int socket, struct identity *out);

/* Lets go of its pidfd, if it has one. */
void identity_close(const struct identity *identity);

/* The uid that connected `socket`. */
int identity_uid_of_peer(int socket, uint32_t *uid);
/* The pid that connected `socket`, dead or alive. */
int identity_pid_of_peer(int socket, int32_t *pid);

/* A pidfd of a process known from before; -ESRCH: it is dead; another -errno: could not tell. */
int identity_reopen(int32_t pid, uint64_t start_time);

bool identity_is_alive(int pidfd);

/* Whether the pid is another, later process's by now. */
bool identity_is_reused(int32_t pid, uint64_t start_time);

/* The program that the process runs now. */
struct image identity_image(int32_t pid);
/* False also when the kernel does not say of one of them. */
bool identity_is_other_image(const struct image *one, const struct image *other);

/* The process's name as the kernel has it; "?" when it is gone. Any bytes may be in it. */
void identity_name(int32_t pid, char name[PROCESS_NAME_SIZE]);

#endif
