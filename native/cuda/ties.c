/* Ties: what a process shares with others or with the host, so that the driver cannot freeze it.
 *
 * hooks.txt names the calls that make a tie. It is written down after the call has succeeded; but
 * before the call if it brings in memory of another process, since a process frozen with such
 * memory never comes back. */
#include "session.h"

void tie_managed(void);
void tie_ipc(void);
void tie_shared(void);

void tie_managed(void)
{
	session_tie(ALIQUOT_TIE_MANAGED);
}

void tie_ipc(void)
{
	session_tie(ALIQUOT_TIE_IPC);
}

void tie_shared(void)
{
	session_tie(ALIQUOT_TIE_SHARED);
}
