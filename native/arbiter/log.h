/* One line per event on stderr: the time (UTC), then text.
 *
 * Guarantee: one write per line, so that lines of the arbiter and its parent do not mix. If the log
 * cannot be written, only lines are lost.
 */
#ifndef ARBITER_LOG_H
#define ARBITER_LOG_H

void log_event(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
