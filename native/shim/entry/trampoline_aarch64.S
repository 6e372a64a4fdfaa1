/* The trampolines for the procedure call standard of AArch64. trampoline_x86_64.S explains how they work. */
        .text

.macro trampoline name
        .globl  mucudnn_real_\name
        .hidden mucudnn_real_\name
        .type   mucudnn_real_\name, %function
        .weak   \name
        .type   \name, %function
        .p2align 4
mucudnn_real_\name:
\name:
        .cfi_startproc
        adrp    x16, mucudnn_slots + 8 * \@
        ldr     x16, [x16, #:lo12:(mucudnn_slots + 8 * \@)]
        br      x16
.Lfirst\@:
        mov     w17, #\@
        b       resolve
        .cfi_endproc
        .size   mucudnn_real_\name, . - mucudnn_real_\name
        .size   \name, . - \name
        .pushsection .data
        .xword  .Lfirst\@
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

/* Finds the real function and jumps to it. w17 holds the export's index. All registers that may hold an
 * argument are saved: x0 to x7, x8 (the address of a large result) and q0 to q7. */
        .p2align 4
        .type   resolve, %function
resolve:
        .cfi_startproc
        stp     x29, x30, [sp, #-224]!
        .cfi_def_cfa_offset 224
        .cfi_offset x29, -224
        .cfi_offset x30, -216
        mov     x29, sp
        stp     x0, x1, [sp, #16]
        stp     x2, x3, [sp, #32]
        stp     x4, x5, [sp, #48]
        stp     x6, x7, [sp, #64]
        str     x8, [sp, #80]
        stp     q0, q1, [sp, #96]
        stp     q2, q3, [sp, #128]
        stp     q4, q5, [sp, #160]
        stp     q6, q7, [sp, #192]
        mov     w0, w17
        bl      mucudnn_resolve
        mov     x16, x0
        ldp     q6, q7, [sp, #192]
        ldp     q4, q5, [sp, #160]
        ldp     q2, q3, [sp, #128]
        ldp     q0, q1, [sp, #96]
        ldr     x8, [sp, #80]
        ldp     x6, x7, [sp, #64]
        ldp     x4, x5, [sp, #48]
        ldp     x2, x3, [sp, #32]
        ldp     x0, x1, [sp, #16]
        ldp     x29, x30, [sp], #224
        .cfi_restore x29
        .cfi_restore x30
        .cfi_def_cfa_offset 0
        br      x16
        .cfi_endproc
        .size   resolve, . - resolve

        .section .note.GNU-stack, "", %progbits
