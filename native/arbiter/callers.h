/* How much of the arbiter one user's requests can take: open control connections, requests per second,
 * and a quarter of the time of the thread that answers. Root and the arbiter's own user are not bounded.
 *
 * All users together leave some of the control connections to those two.
 *
 * The messages of one grant's programs can take an eighth of that thread's time. The budget of a grant
 * lasts for a start of all its programs at once.
 */
#ifndef ARBITER_CALLERS_H
#define ARBITER_CALLERS_H

#include <stdbool.h>
#include <stdint.h>

/* What somebody has taken of the thread's time lately. */
struct budget {
	uint64_t used_until_ns; /* when what was taken is used up */
};

/* One user with control connections, now or recently. */
struct caller {
	uint32_t uid;
	unsigned connections;
	struct budget budget;
};

#define CALLERS_MOST 224u

struct callers {
	struct caller all[CALLERS_MOST];
	unsigned connections; /* of all of them */
};

/* Whether that user is root or the arbiter's own. */
bool callers_is_privileged(uint32_t uid);

/* Counts one more connection. False: the user, or all users together, have too many. *out: the user's
 * part; NULL for a privileged user. */
bool callers_connect(struct callers *callers, uint32_t uid, struct caller **out);
void callers_disconnect(struct callers *callers, struct caller *caller);

/* Counts one more request at that time. False: the user has taken too much lately. */
bool callers_request(struct caller *caller, uint64_t now_ns);
/* Counts the time that answering took. */
void callers_charge(struct caller *caller, uint64_t spent_ns);

/* Counts the time that messages of a grant took. 0; or the time before which no more are read. */
uint64_t callers_charge_grant(struct budget *budget, uint64_t spent_ns, uint64_t now_ns);

/* The processor time of this thread. */
uint64_t callers_time_ns(void);

#endif
