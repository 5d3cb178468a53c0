# Code of a firmware that shows whether an accelerator runs what a guest kernel
# needs: real mode from the reset vector, paging, long mode, model specific
# registers, CPUID, SSE, and port output to QEMU's isa-debug-exit. trial.bin is
# built from this file (go generate); trial.go makes a firmware image of it.
	.code16
start16:
	cli
	mov	%cs, %ax
	mov	%ax, %ds
	lgdtl	gdtr
	# Page tables in RAM at 0x1000: the first GiB, and the GiB that ends at
	# 4 GiB where this firmware is, in pages of 2 MiB.
	xor	%ax, %ax
	mov	%ax, %es
	cld
	xor	%eax, %eax
	mov	$0x1000, %edi
	mov	$0x1400, %ecx
	rep stosl %eax, %es:(%edi)
	movl	$0x2003, %es:0x1000
	movl	$0x3003, %es:0x2000
	movl	$0x4003, %es:0x2018
	mov	$0x83, %eax
	mov	$0x3000, %edi
1:	mov	%eax, %es:(%edi)
	add	$0x200000, %eax
	add	$8, %edi
	cmp	$0x4000, %edi
	jne	1b
	mov	$0xc0000083, %eax
2:	mov	%eax, %es:(%edi)
	add	$0x200000, %eax
	add	$8, %edi
	cmp	$0x5000, %edi
	jne	2b
	mov	$0x6a0, %eax		# PAE, PGE, OSFXSR, OSXMMEXCPT
	and	$0x620, %eax
	mov	%eax, %cr4
	mov	$0x1000, %eax
	mov	%eax, %cr3
	mov	$0xc0000080, %ecx	# EFER
	rdmsr
	or	$0x100, %eax		# LME
	wrmsr
	mov	$0x80000011, %eax	# PG, ET, PE
	mov	%eax, %cr0
	ljmpl	$8, $(0xffff0000 + start64)

	.code64
start64:
	mov	$16, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	mov	$0x8000, %esp
	xor	%eax, %eax
	cpuid
	push	%rbx
	pop	%rdx
	cmp	%rbx, %rdx
	jne	fail
	movq	%rbx, %xmm0
	paddq	%xmm0, %xmm0
	movq	%xmm0, %rax
	shl	$1, %rbx
	cmp	%rax, %rbx
	jne	fail
	mov	$0xc0000080, %ecx
	rdmsr
	test	$0x400, %eax		# LMA
	jz	fail
	mov	$0xc0000100, %ecx	# FS base
	mov	$0x12345678, %eax
	xor	%edx, %edx
	wrmsr
	rdmsr
	cmp	$0x12345678, %eax
	jne	fail
	mov	$0x2a, %al		# QEMU exits with 2*0x2a+1 = 85
	jmp	out
fail:	mov	$1, %al
out:	mov	$0xf4, %dx
	out	%al, %dx
3:	hlt
	jmp	3b

	.balign	8
gdt:	.quad	0
	.quad	0x00af9a000000ffff	# 8: code, 64 bit
	.quad	0x00cf92000000ffff	# 16: data
gdtr:	.word	23
	.long	0xffff0000 + gdt
