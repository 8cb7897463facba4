/* SPDX-License-Identifier: GPL-2.0 */
/* Does this program notice wrong results? Needs no device; exit status. */
#ifndef VGPU_EXERCISE_SELFTEST_H
#define VGPU_EXERCISE_SELFTEST_H

int selftest_run(void);

#endif
