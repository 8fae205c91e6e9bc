/*
 * Results for people and for programs.
 */

#ifndef LOAD_REPORT_H
#define LOAD_REPORT_H

#include "t/bench/load/verify.h"

/* Prints to stdout; `verdict` is NULL when nothing was compared.  Sorts the run's samples. */
void load_report(load_run_t *run, const load_verdict_t *verdict);

#endif
