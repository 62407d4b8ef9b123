/* One line per event on stderr: the time (UTC), then plain text.
 *
 * Guarantee: one write per line, so that lines of the arbiter and its parent do not mix. A log that
 * cannot be written loses lines and nothing else.
 */
#ifndef ARBITER_LOG_H
#define ARBITER_LOG_H

void log_event(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
