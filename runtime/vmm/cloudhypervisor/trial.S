# Code of a kernel that shows whether KVM runs what a guest kernel needs:
# protected mode from the PVH entry, paging, long mode, model specific registers,
# CPUID, SSE, and the port by which ACPI powers a machine off. trial.bin is built
# from this file (go generate); trial.go makes an ELF kernel of it, at 1 MiB.
	.code32
	cli
	cld
	# Page tables at 3 MiB: the first GiB in pages of 2 MiB.
	xor	%eax, %eax
	mov	$0x300000, %edi
	mov	$0xc00, %ecx
	rep stosl %eax, %es:(%edi)
	movl	$0x301003, 0x300000
	movl	$0x302003, 0x301000
	mov	$0x83, %eax
	mov	$0x302000, %edi
1:	mov	%eax, (%edi)
	add	$0x200000, %eax
	add	$8, %edi
	cmp	$0x303000, %edi
	jne	1b
	mov	$0x620, %eax		# PAE, OSFXSR, OSXMMEXCPT
	mov	%eax, %cr4
	mov	$0x300000, %eax
	mov	%eax, %cr3
	mov	$0xc0000080, %ecx	# EFER
	rdmsr
	or	$0x100, %eax		# LME
	wrmsr
	mov	$0x80000011, %eax	# PG, ET, PE
	mov	%eax, %cr0
	lgdt	gdtr
	ljmp	$8, $start64

	.code64
start64:
	mov	$16, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	mov	$0x300000, %esp
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
	mov	$0x34, %al		# S5 and the bit that starts it
	jmp	out
fail:	mov	$1, %al			# restart
out:	mov	$0x600, %dx
	out	%al, %dx
2:	hlt
	jmp	2b

	.balign	8
gdt:	.quad	0
	.quad	0x00af9a000000ffff	# 8: code, 64 bit
	.quad	0x00cf92000000ffff	# 16: data
gdtr:	.word	23
	.long	gdt
