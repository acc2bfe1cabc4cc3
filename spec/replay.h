/* What pan is given for a replay (replay.py): traces, and which sentence is which entry. Included by lifecycle.pml. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int sentences, traces, *entry_of, *length, *farthest, **entries;
static char (*text)[128];

static void report(void) {
    for (int each = 0; each < traces; each++) printf("TRACE %d %d\n", farthest[each], length[each]);
}

static int number(FILE *file) {
    int found = 0;
    if (fscanf(file, "%d", &found) != 1) { fprintf(stderr, "TRACES cannot be read\n"); exit(1); }
    return found;
}

/* TRACES: how many sentences, and each with its entry (0: silent); how many traces, and each with its length. */
static int load(void) {
    FILE *file = fopen(getenv("TRACES"), "r");
    if (!file) { perror("TRACES"); exit(1); }
    sentences = number(file);
    entry_of = calloc(sentences, sizeof *entry_of);
    text = calloc(sentences, sizeof *text);
    for (int each = 0; each < sentences; each++) {
        entry_of[each] = number(file);
        if (fscanf(file, " %127[^\n]", text[each]) != 1) exit(1);
    }
    traces = number(file);
    length = calloc(traces, sizeof *length);
    farthest = calloc(traces, sizeof *farthest);
    entries = calloc(traces, sizeof *entries);
    for (int each = 0; each < traces; each++) {
        length[each] = number(file);
        entries[each] = calloc(length[each], sizeof **entries);
        for (int at = 0; at < length[each]; at++) entries[each][at] = number(file);
    }
    fclose(file);
    atexit(report);
    return traces;
}

static void next_entry(int trace, short *at, short *entry) {
    if (*entry) ++*at;
    *entry = entries[trace][*at];
}

/* With its last entry a trace is one of the model's, and nobody looks for another run of it. */
static int is_over(int trace, int at) {
    if (at > farthest[trace]) farthest[trace] = at;
    return farthest[trace] == length[trace] - 1;
}

static void hear(int trace, short *at, short *entry, unsigned char *over, const char *words, int number) {
    char said[128];
    snprintf(said, sizeof said, words, number);
    said[strcspn(said, "\n")] = 0;
    if (is_over(trace, *at)) *over = 1;
    for (int each = 0; each < sentences; each++)
        if (!strcmp(said, text[each])) {
            if (entry_of[each] == *entry) next_entry(trace, at, entry);
            else if (entry_of[each]) *over = 1;
            return;
        }
    *over = 1;
}
