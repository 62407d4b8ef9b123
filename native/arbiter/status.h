/* The reply to `status`: GPUs, grants and processes, as JSON. */
#ifndef ARBITER_STATUS_H
#define ARBITER_STATUS_H

#include "arbiter.h"
#include "json.h"

void status_write(struct arbiter *arbiter, struct json *out);

#endif
