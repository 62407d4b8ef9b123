/* One line per event on stderr: the time (UTC), then text.
 *
 * Lines of one kind are bounded, because tenants cause many of them: of one format, and of one grant
 * where the format begins with "grant %s", 64 at once and then four a second; of one format in all,
 * 512 at once and then 50 a second. The next line of the kind says how many are missing. The file of
 * an arbiter in the background is renamed to arbiter.log.1 when it has 4 MiB.
 *
 * Guarantee: one write per line, so that lines of the arbiter and its parent do not mix. If the log
 * cannot be written, only lines are lost. One thread of a process writes.
 */
#ifndef ARBITER_LOG_H
#define ARBITER_LOG_H

void log_event(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From now on stdout and stderr are the file arbiter.log in that directory, which stays open. 0, or
 * -errno. */
int log_to_file(int directory);

#endif
