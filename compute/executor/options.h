/* SPDX-License-Identifier: Apache-2.0 */
/* What the command lines of vgpu-supervisor, vgpu-child and vgpu-executor have in common. */
#ifndef VGPU_EXECUTOR_OPTIONS_H
#define VGPU_EXECUTOR_OPTIONS_H

#include <stdint.h>

/* Call it before any other function.  @program and @usage are not copied. */
void vgpu_options_open(const char *program, const char *usage);

/* Prints the usage on standard output and exits with 0. */
_Noreturn void vgpu_options_help(void);

/* Prints the usage on standard error and exits with 2. */
_Noreturn void vgpu_options_wrong(void);

/* Like vgpu_options_wrong(), and first names the option that has a wrong value. */
_Noreturn void vgpu_option_refuse(const char *option, const char *value);

/* Return: a decimal number from @least to @most.  Any other @value is refused. */
uint64_t vgpu_option_number(const char *option, const char *value, uint64_t least, uint64_t most);

#endif /* VGPU_EXECUTOR_OPTIONS_H */
