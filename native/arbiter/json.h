/* Writes JSON into a growing buffer. It adds commas, escapes strings, and replaces bytes that are not
 * UTF-8 by U+FFFD. If memory runs out, `failed` is set and later calls do nothing. */
#ifndef ARBITER_JSON_H
#define ARBITER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json {
	char *text;
	size_t used, size;
	bool failed;
};

/* `key` NULL: an element of a list, or the outermost value. `bracket`: '{' or '['. */
void json_open(struct json *json, const char *key, char bracket);
void json_close(struct json *json, char bracket);
void json_string(struct json *json, const char *key, const char *value); /* NULL: null */
void json_number(struct json *json, const char *key, uint64_t value);
void json_bool(struct json *json, const char *key, bool value);
/* The newline that ends a reply. */
void json_end(struct json *json);
void json_free(struct json *json);

#endif
