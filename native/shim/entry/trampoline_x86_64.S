/* The trampolines, one for each export. Each jumps through its slot. At first the slot leads to the
 * trampoline's own second half, which asks mucudnn_resolve for the real function. From then on the slot leads
 * to that function. Arguments, registers and the stack stay as the caller left them, for any signature.
 *
 * Each trampoline has two names: mucudnn_real_<name>, and the weak symbol <name>. If C++ defines <name> as a
 * hook, the hook is exported instead, and it calls the real function as mucudnn_real_<name>. */
        .text

.macro trampoline name
        .globl  mucudnn_real_\name
        .hidden mucudnn_real_\name
        .type   mucudnn_real_\name, @function
        .weak   \name
        .type   \name, @function
        .p2align 4
mucudnn_real_\name:
\name:
        .cfi_startproc
        jmp     *mucudnn_slots + 8 * \@(%rip)
.Lfirst\@:
        pushq   $\@
        .cfi_adjust_cfa_offset 8
        jmp     resolve
        .cfi_endproc
        .size   mucudnn_real_\name, . - mucudnn_real_\name
        .size   \name, . - \name
        .pushsection .data
        .quad   .Lfirst\@
        .popsection
.endm

        .pushsection .data
        .globl  mucudnn_slots
        .hidden mucudnn_slots
        .p2align 3
mucudnn_slots:
        .popsection

#define EXPORT(name) trampoline name
#include "exports.def"

/* Finds the real function and jumps to it. The stack holds the export's index, then the caller's return
 * address. All registers that may hold an argument are saved: six integer registers, eight vector registers,
 * al (the number of vector registers, in variadic calls) and r10. */
        .p2align 4
        .type   resolve, @function
resolve:
        .cfi_startproc
        .cfi_def_cfa_offset 16
        pushq   %rbp
        .cfi_def_cfa_offset 24
        .cfi_offset %rbp, -24
        movq    %rsp, %rbp
        .cfi_def_cfa_register %rbp
        subq    $200, %rsp              /* 8 integer and 8 vector registers; keeps rsp aligned to 16 */
        movq    %rax, -8(%rbp)
        movq    %rdi, -16(%rbp)
        movq    %rsi, -24(%rbp)
        movq    %rdx, -32(%rbp)
        movq    %rcx, -40(%rbp)
        movq    %r8, -48(%rbp)
        movq    %r9, -56(%rbp)
        movq    %r10, -64(%rbp)
        movups  %xmm0, -80(%rbp)
        movups  %xmm1, -96(%rbp)
        movups  %xmm2, -112(%rbp)
        movups  %xmm3, -128(%rbp)
        movups  %xmm4, -144(%rbp)
        movups  %xmm5, -160(%rbp)
        movups  %xmm6, -176(%rbp)
        movups  %xmm7, -192(%rbp)
        movq    8(%rbp), %rdi
        call    mucudnn_resolve
        movq    %rax, %r11
        movq    -8(%rbp), %rax
        movq    -16(%rbp), %rdi
        movq    -24(%rbp), %rsi
        movq    -32(%rbp), %rdx
        movq    -40(%rbp), %rcx
        movq    -48(%rbp), %r8
        movq    -56(%rbp), %r9
        movq    -64(%rbp), %r10
        movups  -80(%rbp), %xmm0
        movups  -96(%rbp), %xmm1
        movups  -112(%rbp), %xmm2
        movups  -128(%rbp), %xmm3
        movups  -144(%rbp), %xmm4
        movups  -160(%rbp), %xmm5
        movups  -176(%rbp), %xmm6
        movups  -192(%rbp), %xmm7
        leave
        .cfi_def_cfa %rsp, 16
        addq    $8, %rsp
        .cfi_def_cfa_offset 8
        jmp     *%r11
        .cfi_endproc
        .size   resolve, . - resolve

        .section .note.GNU-stack, "", @progbits
