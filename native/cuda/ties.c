/* What ties a process to others or to the host, so that the driver cannot freeze it: hooks.txt names
 * the calls after whose success these are called; before it where memory comes from others, since a
 * process that is frozen with such memory never comes back. */
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
