/* dlopen(path, flags) and dlmopen(namespace, path, flags): see redirect.c. */
	.hidden redirect_path
	.hidden redirect_next_dlopen
	.hidden redirect_next_dlmopen
	.text
	.globl dlopen
	.globl dlmopen
#if defined(__x86_64__)
	.type dlopen, @function
dlopen:
	.cfi_startproc
	endbr64
	pushq %rsi
	.cfi_adjust_cfa_offset 8
	call redirect_path
	movq %rax, %rdi
	popq %rsi
	.cfi_adjust_cfa_offset -8
	movq redirect_next_dlopen(%rip), %r11
	jmp *%r11
	.cfi_endproc
	.size dlopen, .-dlopen

	.type dlmopen, @function
dlmopen:
	.cfi_startproc
	endbr64
	pushq %rdi
	.cfi_adjust_cfa_offset 8
	pushq %rdx
	.cfi_adjust_cfa_offset 8
	subq $8, %rsp
	.cfi_adjust_cfa_offset 8
	movq %rsi, %rdi
	call redirect_path
	movq %rax, %rsi
	addq $8, %rsp
	.cfi_adjust_cfa_offset -8
	popq %rdx
	.cfi_adjust_cfa_offset -8
	popq %rdi
	.cfi_adjust_cfa_offset -8
	movq redirect_next_dlmopen(%rip), %r11
	jmp *%r11
	.cfi_endproc
	.size dlmopen, .-dlmopen
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
	bl redirect_path
	ldr x1, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	adrp x16, redirect_next_dlopen
	ldr x16, [x16, :lo12:redirect_next_dlopen]
	br x16
	.cfi_endproc
	.size dlopen, .-dlopen

	.type dlmopen, %function
dlmopen:
	.cfi_startproc
	hint #34 /* bti c */
	stp x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset 29, -32
	.cfi_offset 30, -24
	stp x0, x2, [sp, #16]
	mov x0, x1
	bl redirect_path
	mov x1, x0
	ldp x0, x2, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_restore 29
	.cfi_restore 30
	.cfi_def_cfa_offset 0
	adrp x16, redirect_next_dlmopen
	ldr x16, [x16, :lo12:redirect_next_dlmopen]
	br x16
	.cfi_endproc
	.size dlmopen, .-dlmopen
	.section .note.GNU-stack, "", %progbits
#endif
