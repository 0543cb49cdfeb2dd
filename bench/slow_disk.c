/* Preloaded into a process, makes every fsync and fdatasync take longer, as on a network volume or a consumer SSD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static int synced(const char *name, int fd)
{
    int (*sync_file)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *ms = getenv("STRANDBENCH_FSYNC_MS");
    long ns = ms ? (long)(atof(ms) * 1e6) : 0;
    struct timespec left = {ns / 1000000000, ns % 1000000000};
    int result = sync_file(fd);

    while (ns && nanosleep(&left, &left)) {
    }
    return result;
}

int fsync(int fd) { return synced("fsync", fd); }
int fdatasync(int fd) { return synced("fdatasync", fd); }
