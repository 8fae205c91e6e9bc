/*
 * A container or a service has less than the machine: every control group from the process's own up
 * to the root may have a limit, and what is left below the lowest counts.  Cached file pages count
 * as used there although they can be given up, so they are taken off.
 */

#include "engine/core/memory.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#define GROUPS "/sys/fs/cgroup"


/* The number behind `key` in a file of lines "key number ..."; without a key, the file's only
 * number.  UINT64_MAX when there is none. */
static uint64_t read_number(const char *path, const char *key)
{
    FILE *file = fopen(path, "re");
    unsigned long long number = UINT64_MAX;
    char line[256];
    size_t skip = key ? strlen(key) : 0;

    while (file && fgets(line, sizeof(line), file)) {
        if ((key == NULL || strncmp(line, key, skip) == 0)
            && sscanf(line + skip, "%llu", &number) == 1)
        {
            break;
        }
    }
    if (file) {
        fclose(file);
    }
    return number;
}


static uint64_t read_group(const char *group, const char *file, const char *key)
{
    char path[PATH_MAX];
    int size = snprintf(path, sizeof(path), GROUPS "%s/%s", group, file);

    return size > 0 && (size_t) size < sizeof(path) ? read_number(path, key) : UINT64_MAX;
}


/* What the limit of one group leaves. */
static uint64_t left_in(const char *group)
{
    uint64_t limit = read_group(group, "memory.max", NULL);
    uint64_t used = read_group(group, "memory.current", NULL);
    uint64_t files = read_group(group, "memory.stat", "inactive_file ");

    if (limit == UINT64_MAX || used == UINT64_MAX) {
        return UINT64_MAX;
    }
    used -= files < used ? files : 0;
    return used < limit ? limit - used : 0;
}


/* The process's group of version 2, "/..." or "" for the root.  0 when there is none. */
static int find_group(char *group, size_t size)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    int found = 0;

    while (file && !found && fgets(group, (int) size, file)) {
        found = strncmp(group, "0::/", 4) == 0;
    }
    if (file) {
        fclose(file);
    }
    if (found) {
        group[strcspn(group, "\n")] = '\0';
        memmove(group, group + 3, strlen(group + 3) + 1);
    }
    return found;
}


static uint64_t left_in_groups(void)
{
    char group[PATH_MAX];
    uint64_t least = UINT64_MAX;
    char *end;

    if (!find_group(group, sizeof(group))) {
        return UINT64_MAX;
    }
    do {
        uint64_t left = left_in(group);

        least = left < least ? left : least;
        end = strrchr(group, '/');
        if (end) {
            *end = '\0';
        }
    } while (end);
    return least;
}


uint64_t moe_memory_available(void)
{
    uint64_t memory = read_number("/proc/meminfo", "MemAvailable:");
    uint64_t swap = read_number("/proc/meminfo", "SwapFree:");
    uint64_t groups = left_in_groups();

    if (memory == UINT64_MAX) {
        return groups;
    }
    memory = 1024 * (memory + (swap == UINT64_MAX ? 0 : swap));
    return memory < groups ? memory : groups;
}
