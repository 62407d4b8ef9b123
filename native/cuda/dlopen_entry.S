/* dlopen(path, flags): see lookup.c. */
	.hidden lookup_redirect
	.hidden lookup_next_dlopen
	.text
	.globl dlopen
#if defined(__x86_64__)
	.type dlopen, @function
dlopen:
	.cfi_startproc
	endbr64
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	call lookup_redirect
	movq %rax, %rdi
	popq %rsi
	.cfi_adjust_cfa_offset -8
	movq lookup_next_dlopen(%rip), %r11
	jmp *%r11
	.cfi_endproc
	.size dlopen, .-dlopen
	.section .note.GNU-stack, "", @progbits
#elif defined(__aarch64__)
	.type dlopen, %function
dlopen:
	.cfi_startproc
	hint #34 /* bti c */
	stp x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	str x1, [sp, #16]
	bl lookup_redirect
	ldr x1, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	adrp x16, lookup_next_dlopen
	ldr x16, [x16, :lo12:lookup_next_dlopen]
	br x16
	.cfi_endproc
	.size dlopen, .-dlopen
	.section .note.GNU-stack, "", %progbits
#endif
