/* The jumps. FORWARD name, slot: an exported function that jumps through forward_real[slot]; while
 * that is empty it asks forward_resolve first, with every argument register kept. The stack and the
 * return address stay the caller's, so any signature passes. */
	.hidden forward_real
	.hidden forward_resolve
	.text

#if defined(__x86_64__)

.macro FORWARD name, slot
	.globl \name
	.type \name, @function
	.p2align 4
\name:
	endbr64
	movq forward_real+8*\slot(%rip), %r11
	testq %r11, %r11
	jz 1f
	jmp *%r11
1:	movl $\slot, %r11d
	jmp forward_slow
	.size \name, .-\name
.endm

.macro FORWARD_END
	.type forward_slow, @function
forward_slow:
	.cfi_startproc
	pushq %rbp
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbp, 0
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	subq $192, %rsp
	andq $-16, %rsp
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	movups %xmm0, 48(%rsp)
	movups %xmm1, 64(%rsp)
	movups %xmm2, 80(%rsp)
	movups %xmm3, 96(%rsp)
	movups %xmm4, 112(%rsp)
	movups %xmm5, 128(%rsp)
	movups %xmm6, 144(%rsp)
	movups %xmm7, 160(%rsp)
	movl %r11d, %edi
	call forward_resolve
	movq %rax, %r11
	movq (%rsp), %rdi
	movq 8(%rsp), %rsi
	movq 16(%rsp), %rdx
	movq 24(%rsp), %rcx
	movq 32(%rsp), %r8
	movq 40(%rsp), %r9
	movups 48(%rsp), %xmm0
	movups 64(%rsp), %xmm1
	movups 80(%rsp), %xmm2
	movups 96(%rsp), %xmm3
	movups 112(%rsp), %xmm4
	movups 128(%rsp), %xmm5
	movups 144(%rsp), %xmm6
	movups 160(%rsp), %xmm7
	leave
	.cfi_def_cfa %rsp, 8
	jmp *%r11
	.cfi_endproc
	.size forward_slow, .-forward_slow
	.section .note.GNU-stack, "", @progbits
.endm

#elif defined(__aarch64__)

.macro FORWARD name, slot
	.globl \name
	.type \name, %function
	.p2align 2
\name:
	hint #34 /* bti c */
	adrp x16, forward_real+8*\slot
	add x16, x16, :lo12:forward_real+8*\slot
	ldar x16, [x16]
	cbz x16, 1f
	br x16
1:	mov w17, #\slot
	b forward_slow
	.size \name, .-\name
.endm

.macro FORWARD_END
	.type forward_slow, %function
forward_slow:
	.cfi_startproc
	stp x29, x30, [sp, #-224]!
	.cfi_def_cfa_offset 224
	.cfi_offset 29, -224
	.cfi_offset 30, -216
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
	str x8, [sp, #80]
	stp q0, q1, [sp, #96]
	stp q2, q3, [sp, #128]
	stp q4, q5, [sp, #160]
	stp q6, q7, [sp, #192]
	mov w0, w17
	bl forward_resolve
	mov x16, x0
	ldp q6, q7, [sp, #192]
	ldp q4, q5, [sp, #160]
	ldp q2, q3, [sp, #128]
	ldp q0, q1, [sp, #96]
	ldr x8, [sp, #80]
	ldp x6, x7, [sp, #64]
	ldp x4, x5, [sp, #48]
	ldp x2, x3, [sp, #32]
	ldp x0, x1, [sp, #16]
	ldp x29, x30, [sp], #224
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	br x16
	.cfi_endproc
	.size forward_slow, .-forward_slow
	.section .note.GNU-stack, "", %progbits
.endm

#else
#error "Aliquot's stand-ins know x86-64 and arm64"
#endif
