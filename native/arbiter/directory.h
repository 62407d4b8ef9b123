/* Walking the entries of a directory. */
#ifndef ARBITER_DIRECTORY_H
#define ARBITER_DIRECTORY_H

/* Calls `each` for every entry of the directory `name` in `parent` except "." and "..". It may remove
 * that entry. A link is not followed. 0; or -errno: the directory cannot be opened. */
int directory_walk(int parent, const char *name,
                   void (*each)(int directory, const char *entry, void *context), void *context);

/* Removes all entries of that directory which are no directories themselves. */
void directory_remove_files(int parent, const char *name);

#endif
