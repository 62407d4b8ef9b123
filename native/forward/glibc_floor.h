/* The oldest glibc we load on is 2.17. These functions moved into libc later and would be bound to
 * their newer names by the machine that builds; the older ones are still there everywhere. */
#ifndef ALIQUOT_GLIBC_FLOOR_H
#define ALIQUOT_GLIBC_FLOOR_H

#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dladdr, dladdr@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
__asm__(".symver dlmopen, dlmopen@GLIBC_2.3.4");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
__asm__(".symver dladdr, dladdr@GLIBC_2.17");
__asm__(".symver dlerror, dlerror@GLIBC_2.17");
__asm__(".symver dlmopen, dlmopen@GLIBC_2.17");
#endif

#endif
