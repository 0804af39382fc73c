/* Loaded before libc (LD_PRELOAD): reads, writes and syncs of files whose names hold $FAULT_STORE fail, as the first
   number in the file $FAULT_SWITCH says: 1 reads, 2 writes (EIO), 4 writes (ENOSPC), 8 syncs. The second counts them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile int *flags;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("FAULT_SWITCH");
    int fd = path ? open(path, O_RDWR) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    flags = at == MAP_FAILED ? NULL : (volatile int *)at;
    close(fd);
}

static int fails(int fd, int kind) {
    if (!flags || !(flags[0] & kind)) return 0;
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n < 0) return 0;
    name[n] = 0;
    const char *store = getenv("FAULT_STORE");
    if (!store || !strstr(name, store)) return 0;
    __sync_fetch_and_add(&flags[1], 1);
    errno = kind == 4 ? ENOSPC : EIO;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t pread64(int fd, void *data, size_t n, off64_t at) { return fails(fd, 1) ? -1 : REAL(pread64)(fd, data, n, at); }
ssize_t pread(int fd, void *data, size_t n, off_t at) { return fails(fd, 1) ? -1 : REAL(pread)(fd, data, n, at); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    return fails(fd, 2) || fails(fd, 4) ? -1 : REAL(pwrite64)(fd, data, n, at);
}
ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    return fails(fd, 2) || fails(fd, 4) ? -1 : REAL(pwrite)(fd, data, n, at);
}
int fsync(int fd) { return fails(fd, 8) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fails(fd, 8) ? -1 : REAL(fdatasync)(fd); }
