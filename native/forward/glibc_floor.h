/* The oldest glibc that the stand-ins load on is 2.17. Newer versions moved these functions into
 * libc, and a build would bind to their newer symbols; the older symbols still exist everywhere. */
#ifndef ALIQUOT_GLIBC_FLOOR_H
#define ALIQUOT_GLIBC_FLOOR_H

#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dladdr, dladdr@GLIBC_2.17");
__asm__(".symver dlerror, dlerror@GLIBC_2.17");
#endif

#endif
