/* The clean-up of Iceberg tables by Artemis Lifecycle, with everybody else who touches them. Read docs/model.md first.

   Each step is atomic (`d_step`): between any two, anybody else may act, and the product may crash. A path before a
   step, as in "walk/deletion.py delete_files", names the function of the product that it stands for. `say` is the step
   in words: a counterexample is the list of these sentences. `on(X)` is a guard, of the list that begins here. A scope
   (at the end) is a configuration: which processes run, and with which bounds.

   A file is an identity, not a path: OLD and NEW are two files at one path. Sets of files are sums of their numbers. */

/* --- guards: number, and the row of docs/protection.md. check.py takes them out, one by one. ------------------------ */

#define REACH           1  /* reachability */
#define REREAD          2  /* the pointer is read again before each batch */
#define DIFFERENCE      3  /* a plan has what expired snapshots reach and no kept one does */
#define CAS             4  /* compare-and-swap of the pointer */
#define REFS            5  /* refs of the base that is swapped */
#define POLICY          6  /* the policy of now */
#define HOLDS           7  /* holds */
#define BEAT_EXPIRE     8  /* heartbeats stop expirations */
#define BEAT_ORPHANS    9  /* heartbeats stop orphan deletions */
#define LOCKED         10  /* the lock is held to the last second */
#define FRESH          11  /* a check lasts ten seconds */
#define SEALED_AT      12  /* written again after the plan */
#define LOOK           13  /* the first look at a plan's files */
#define ARCHIVED_FILE  14  /* the archived file is the live one */
#define MADE_BY        15  /* a commit is ours by the metadata log */
#define OPEN_PLANS     16  /* open plans hold their files */
#define UNARCHIVED     17  /* open plans hold what they still have to archive */
#define COPY_HANDOFF   18  /* cold copies are asked for by the handoff */
#define COPY_COMMIT    19  /* cold copies are asked for before the commit */
#define COPY_BATCH     20  /* cold copies are asked for before each batch */
#define REUSED         21  /* an archived path is not an archived file */
#define TIERS          22  /* tiers apart */
#define FORGOTTEN      23  /* the store says what is in the deep archive */
#define NAMED          24  /* what a plan's ref names */
#define JUDGED         25  /* what goes into quarantine is what was judged */
#define UNDELETES      26  /* undeletes */
#define NEIGHBORS      27  /* other tables that read here */
#define DOTS           28  /* tables with dots in their names */
#define SIBLINGS       29  /* readers in sibling catalogs */
#define COLD_READERS   30  /* foreign tables in the cold catalog */
#define NESSIE         31  /* readers of Nessie catalogs */
#define NEWER          32  /* tables of a newer format version */
#define UNREAD         33  /* tables that cannot be read */
#define UNREAD_NEWEST  34  /* newest commits that cannot be read */
#define DROPPED_READER 35  /* readers that were dropped */
#define LAST_STATE     36  /* the last state of dropped tables */
#define DROPPED_NEWER  37  /* dropped tables of a newer format version */
#define DROPPED_BESIDE 38  /* dropped tables of sibling catalogs */
#define SECOND_NAME    39  /* second names of a uuid */
#define LOST_COMMITS   40  /* commits that a catalog lost */
#define HELD_READER    41  /* holds of other tables */
#define NO_ANSWER      42  /* a live catalog that does not answer */
#define AFTER_LISTING  43  /* the metadata is read after the listing */
#define AGE            44  /* age */
#define CLOCKS         45  /* clocks agree */
#define LISTED         46  /* changed since listing */
#define EVIDENCE       47  /* evidence of a future */
#define OWN_METADATA   48  /* the metadata's own files */
#define ATTEMPTS       49  /* what a killed step wrote on top of the pointer */
#define OWN_UNREADABLE 50  /* metadata that cannot be read stops */
#define HIDDEN         51  /* hidden names */
#define ROOTS          52  /* roots */
#define LAYOUT         53  /* the layout of a format */
#define RECEIPTS       54  /* receipts of earlier deletions */
#define VIEWS          55  /* objects that are not tables */
#define VIEW_FILES     56  /* metadata files of other objects */
#define DELTA          57  /* logs of other formats */
#define PAIMON         58  /* folders of Paimon */
#define INSIDE         59  /* other tables inside */
#define DROPPED_INSIDE 60  /* dropped tables inside */
#define UNKNOWN_INSIDE 61  /* tables inside that no catalog knows */
#define HERE_BEFORE    62  /* tables that were here before */
#define SIBLING_HERE   63  /* sibling catalogs */
#define FILE_NAMES     64  /* physical identity of files */
#define FOLDER_NAMES   65  /* physical identity of folders */
#define PREFIX         66  /* prefix mismatch */
#define LIMITS         67  /* limits */
#define GC_ENABLED     68  /* gc.enabled */
#define OWNED          69  /* the table's own locations */
#define OPEN_SCANS     70  /* deletions of other scans */
#define NAME           71  /* a name is not a table */
#define ELSEWHERE      72  /* dropped tables that live elsewhere */
#define ABSENT         73  /* a dropped table is asked for again */
#define DEPLOYMENT     74  /* one deployment */
#define OWN_COMMITS    75  /* own commits are seen */
#define SEALED         76  /* nothing is deleted without a sealed plan */
#define DEAD_HOLDER    77  /* a dead holder is not waited for */

/* Up to three guards that are out. Constants of a run: pan takes them from its environment (`take_out`). */
byte out1, out2, out3, limit;
byte only;                /* plans of one kind alone: 1 S1 by its id, 2 S1 because a ref keeps S0 */
c_decl { \#include <stdlib.h> }
#define on(guard) (out1 != (guard) && out2 != (guard) && out3 != (guard))

/* What docs/protection.md says that the product cannot see. `limit` is the one that the environment breaks,
   0 for none. */
#define BETWEEN_COMMIT_AND_LOOK 1   /* a renamed file at an expired path before the first look at it */
#define WITHOUT_HEARTBEAT       2   /* a commit of a doomed file between check and request, without a heartbeat */
#define SCAN_THEN_RESTORE       3   /* a catalog put back between a scan and its deletion */
#define UNSEEN_COMMIT           4   /* a reader's commit that nobody saw, and that a catalog lost */
#define HIGHER_LIMIT            5   /* a share below the limit, of a table that nothing tells of */
#define RENAMED_IN_FLIGHT       6   /* a file of an old time, renamed to a path and not committed when a scan lists it */

#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef PLANS
#define PLANS 1
#endif
#ifndef COLD
#define COLD 0
#endif
#if defined(LEAKED) || defined(REPLAY)
#define NIGHTS   /* scans without an end */
#endif
/* Is there a scanner beside the expirer? */
#if defined(ARCHIVE) || defined(UNDELETE) || defined(WHOLE)
#define SCANS 1
#else
#define SCANS 0
#endif
#ifndef QUARANTINE
#define QUARANTINE 0
#endif

#define MOVED_REF_THEN_EXPIRED   7   /* a lapsed ref is moved, and another tool expires what it names before our commit */

#ifndef REPLAY
#define say(words) printf(words)
#define say_of(words, number) printf(words, number)   /* check.py writes names for "file 8", "kind 3" and "reader 2" */
#define unclear(as) false
#define if_alive
#else
/* A replay (replay.py): a sentence that a trace of real tables would have must be its next `entry`, which it takes; else
   the run is `over` here. What a trace cannot see may happen at any time. replay.h knows the traces and the sentences. */
c_decl { \#include "replay.h" }
short traces, chosen, at, entry, said, facts;
byte over, given_up;      /* `given_up`: a person lets the handoff omit S0, whose other files are gone */
#define say_of(words, number) said = number; c_code { hear(now.chosen, &now.at, &now.entry, &now.over, words, now.said); }; said = 0
#define say(words) c_code { hear(now.chosen, &now.at, &now.entry, &now.over, words, 0); }
#define if_alive provided (!over)
#define unclear(as) (entry == (as) && (facts & as##_UNCLEAR))   /* what is outside of the trace may be why it stays */
#endif

/* --- files and snapshots -------------------------------------------------------------------------------------------- */

#define OLD     1    /* path 0: snapshot S0 reads it, the newest does not */
#define NEW     2    /* path 0 again: another file, put at OLD's path */
#define SHARED  4    /* path 1: S0 and S1 read it */
#define CURRENT 8    /* path 2: the newest snapshot reads it */
#define LEFT    16   /* path 3: no snapshot reads it: of a writer that failed, or is still at work */
#define AGAIN   32   /* path 3 again: put at LEFT's path */
#define FUTURE  64   /* path 4: new in a commit that the catalog loses when it is put back */
#define META    128  /* path 5: the current metadata file */
#define THEIRS  256  /* path 6: a file in the table's folder, or of it, that its metadata does not name so */

#ifdef REPLAY
#undef SHARED
#define SHARED 0     /* a replay is of one path */
#endif

#define both(f, a, b) ((((f) & (a | b)) -> (a | b) : 0))
/* The product compares paths: with a file, all that ever stand at its path. */
#define at_path(f) (both(f, OLD, NEW) | both(f, LEFT, AGAIN) | ((f) & (SHARED | CURRENT | FUTURE | META | THEIRS)))

#define S0 1
#define S1 2
#define S2 4         /* {NEW}: the commit of a job that wrote OLD's path again */
#define reads(s) ((((s) & S0) -> (OLD | SHARED) : 0) | (((s) & S1) -> SHARED : 0) | (((s) & S2) -> NEW : 0))

/* --- the world ------------------------------------------------------------------------------------------------------ */

short live = OLD | SHARED | CURRENT;  /* the store of the live tier */
short cold, deep;                     /* the cold tier: its copies; those that are in the deep archive */
byte snaps = S0 | S1;                 /* the pointer's metadata: its snapshots but the newest, */
short cur = CURRENT;                  /*   what the newest reads, */
bool tag0;                            /*   a ref on S0. */
bool moved;                           /* somebody swapped the pointer since the expirer read it */
bool ours;                            /* the metadata log has the expirer's swap */
bool thin, named1;                    /* the archive has only what a lapsed ref names: S0, or by now S1 */
bool same_place;                      /* the cold root is the live root under another name */
#define reach (reads(snaps) | cur)

/* --- Postgres and the product's root: what survives a crash ----------------------------------------------------------- */

mtype = { NONE, OPEN, HANDED, COMMITTED, DELETING, DONE, SEALED_SCAN, LISTING };
mtype plan = NONE;
byte px, plans;           /* the plan's snapshots, sealed; how many plans there were */
short pf, looked, done;   /* its files, sealed; what stood at their paths at the first look; those with an outcome */
bool has_looked, due, recent;
short ledger, dbdeep;     /* what the product believes to be in cold, and of it in the deep archive */
byte published;           /* the snapshots of the cold table */
bool held, raised;        /* a hold on the table; a window that by now keeps S0 */
byte beat;                /* the live heartbeats, by writers */
short aside, undeleted;   /* in quarantine; put back from there by an undelete that is not closed */

/* --- volatile: a crash takes it --------------------------------------------------------------------------------------- */

mtype = { FREE, EXPIRER, SCANNER };
mtype lock = FREE;        /* the table's advisory lock */
bool committing, swapped, begun, sbegun, stale, copied;
byte nx;
short ncur, going, sgoing, seen, f, set_aside;
byte crashes;

/* --- writers, readers, others ------------------------------------------------------------------------------------------- */

byte wa, wb, wc, wl, tool, lost_lock, frozen, lost_copy;
short waf;
bool oldtime;             /* NEW has a time of before the plan: it was renamed to that path */
short young, lost, own_seen, look_seen;      /* files below min_age; what commits took up that the
                             catalog lost; what commits took up that a step of ours made, and that one saw */
bool ahead;               /* Postgres' clock went ahead */

byte fl;                  /* a commit that the catalog loses, and what becomes of it */
byte rkind, rstate, runread;       /* the reader, see Reader */
short rmask, rseen, rlost, rheld;
bool rknown;

byte theirs;              /* what THEIRS is, see Scanner */

mtype sstate = NONE;      /* an orphan scan: */
short sl, sr, so, sdone;  /*   what it listed, what the metadata reached, what it sealed, outcomes */

#if defined(ORPHANS) || defined(LEAKED)
#define lost_is_needed lost   /* the scan of the table itself finds all of them */
#else
#define lost_is_needed (limit == UNSEEN_COMMIT -> lost : (lost & (own_seen | look_seen)))
#endif
#define in_flight (((wa == 1) -> waf : 0) | ((wc == 1) -> NEW : 0) | ((wl == 1 || wl == 3) -> LEFT : 0) | ((wl == 5) -> AGAIN : 0))
#define of_reader (rmask | rheld | (limit == UNSEEN_COMMIT -> rlost : (rlost & rseen)))

/* --- promises ------------------------------------------------------------------------------------------------------------ */

/* What the policy promises to archive of the plan. */
#ifndef REPLAY
#define promised ((thin -> ((named1 -> S1 : S0) & px) : px))
#else
#define promised (given_up -> 0 : px)
#endif
#define readable(s) (!(reads(s) & ~(cold & ~deep)))

/* (1) No file that a snapshot of any table reaches is deleted, nor one that a writer under its contract is about to
   commit, nor one that can be registered again. (2) The content of an expired snapshot is in live or in cold.
   (3) Nothing is deleted without a sealed plan or scan: of a path, that file and no other. (4) A hold holds. */
#ifndef REPLAY
#define promise(ok, words) if :: (ok) :: else -> say(words); assert(false) fi
#else
#define promise(ok, words) if :: (ok) :: else -> over = 1 fi
#endif
inline require(sealed) {
    promise(!(f & reach), "LOST (1): a snapshot of the table reads it\n");
    promise(!(f & in_flight), "LOST (1): a writer is about to commit it\n");
    promise(!(f & of_reader), "LOST (1): another table reads it\n");
    promise(!(f & lost_is_needed), "LOST (1): a commit that the catalog lost reads it\n");
    promise(!(f & undeleted), "LOST (1): a person has put it back\n");
    promise(!(f & (META | THEIRS)), "LOST (1): it is in use\n");
    promise(!(f & reads(published) & ~cold) && !(f & reads(published) & deep & ~dbdeep), "LOST (2): cold cannot read an archived snapshot\n");
    promise(!(COLD && plan != NONE && (f & reads(promised & ~published))), "LOST (2): it was to be archived, and is not\n");
    promise(!(f & ~(sealed)), "LOST (3): it is not the file that was sealed\n");
    promise(!held, "LOST (4): the table is on hold\n")
}

/* --- the product: expiration ---------------------------------------------------------------------------------------------- */

/* protection/protection.py kept: why a file stays. `f` is the file that stands at the path now. */
#define by_own (on(REACH) && (f & at_path(seen)))
/* protection/future.py ahead_of: commits of a catalog that was put back, as far as a step saw or made them. */
#define lost_is_seen (look_seen | (on(OWN_COMMITS) -> own_seen : 0))
#define by_reader ((f & at_path(lost & lost_is_seen)) || rstate > 0 && (f & at_path(what_is_seen_of_reader)))

/* WAITING of protection/protection.py: what a reader reads stays for good, and is an orphan after it. A reader that cannot be
   read, or is on hold, may give it back. */
#define for_now (rstate == 1 && (runread || rheld))

/* protection/neighbors.py: what the product knows of the reader. Kinds: 1 a table of this catalog, 2 with a dot in its
   name, 3 in a sibling catalog, 4 in the cold catalog, 5 on a branch of a Nessie server, 6 of a newer format version,
   7 a second name of this table's uuid, 8 in a live catalog that does not answer.
   States: 1 there, 2 dropped, 3 its catalog was put back. */
#define kind_is_seen (rkind == 1 || rkind == 7 || (rkind == 2 && on(DOTS)) || (rkind == 3 && on(SIBLINGS)) \
    || (rkind == 4 && on(COLD_READERS)) || (rkind == 5 && on(NESSIE)) || (rkind == 6 && on(NEWER)) || (rkind == 8 && on(NO_ANSWER)))
#define dropped_is_seen (on(DROPPED_READER) && ((rkind == 7 && on(SECOND_NAME)) || (rkind == 3 && on(DROPPED_BESIDE)) \
    || (rkind == 6 && on(DROPPED_NEWER)) || (rkind != 7 && rkind != 3 && rkind != 6)))
#define what_is_seen_of_reader ( \
      ((rstate == 1 && runread == 0 && on(NEIGHBORS) && kind_is_seen) -> rmask : 0) \
    | ((rstate == 1 && runread == 1 && on(UNREAD_NEWEST)) -> (OLD | SHARED) : 0) \
    | ((rstate == 1 && runread == 2 && on(UNREAD)) -> (OLD | SHARED) : 0) \
    | ((rstate == 2 && dropped_is_seen) -> (on(LAST_STATE) -> rmask : rseen) : 0) \
    | ((rstate == 3) -> rmask : 0) \
    | (on(LOST_COMMITS) -> (rlost & rseen) : 0) \
    | (on(HELD_READER) -> rheld : 0))

/* cold_tier/presence.py, cold_tier/needed.py: which of the files the archive has, by path or by identity; a copy that
   was moved to the deep archive cannot be read. */
#define has_copies (((on(REUSED) -> cold : at_path(cold)) & ~(on(FORGOTTEN) -> deep : dbdeep)) | (same_place -> live : 0))
#define is_in_ledger ((on(REUSED) -> ledger : at_path(ledger)) & ~dbdeep)
inline copy_from_live() {
    cold = cold | (reads(promised) & live & ~has_copies);
    deep = deep & ~(reads(promised) & live & ~has_copies); dbdeep = dbdeep & deep; ledger = ledger | cold
}

inline seal(expired) {
    look_seen = look_seen | cur | (tag0 -> reads(S0) : 0);
    px = expired; plan = OPEN; plans++; has_looked = 0; due = 0; done = 0; looked = 0; ours = 0; oldtime = 0; named1 = 0;
    if
    :: on(DIFFERENCE) -> pf = reads(px) & ~at_path(reads(snaps & ~px) | cur)
    :: else -> pf = reads(px) & ~at_path(cur)
    fi
#ifdef REPLAY
    promise(pf & OLD, "a plan of the trace has the path")
#endif
}

/* deletion/identities.py: is the file at the path the one that expired? */
#define is_another_file ((on(SEALED_AT) && !COLD && f == NEW && !(pf & NEW) && !oldtime) || (on(LOOK) && !COLD && (f & ~looked)) \
    || (COLD && on(ARCHIVED_FILE) && (f & at_path(ledger)) && (f & ~ledger)))

/* deletion/worker.py _piece: the last check of the file at one path, under the table's lock. */
inline check(path) {
    lock = EXPIRER; stale = 0; f = live & at_path(path);
    if :: on(REREAD) -> seen = reach :: else fi;
    if
    :: on(HOLDS) && held -> begun = 0; lock = FREE; say("expirer: a hold stops it\n")
    :: else ->
        if
        :: !f -> done = done | (path); lock = FREE; say_of("expirer: finds file %d gone\n", path)
        :: else ->
            if
            :: (by_own || by_reader && !for_now || unclear(KEPT)) && !unclear(WAITS) ->
                done = done | (path); lock = FREE; set_aside = 0; say_of("expirer: keeps file %d for good\n", f)
            :: else ->
                if
                :: by_reader || unclear(WAITS) || (on(BEAT_EXPIRE) && beat) || (COLD && on(COPY_BATCH) && (f & reads(published) & ~has_copies)) ->
                    begun = 0; lock = FREE; set_aside = 0; say_of("expirer: file %d waits\n", f)
                :: else ->
                    if
                    :: is_another_file || (QUARANTINE && on(JUDGED) && (f & (OLD | NEW) & ~set_aside)) ->
                        done = done | (path); lock = FREE; set_aside = 0; say_of("expirer: keeps file %d for good\n", f)
                    :: else -> going = f; say_of("expirer: checks file %d: it may go\n", f)
                    fi
                fi
            fi
        fi
    fi
}

/* A hold stops commits and deletions. That a handoff and a listing wait for it, too, saves states and no more: neither
   takes anything away. In a replay both go on. */
#ifdef REPLAY
#define may_prepare true
#else
#define may_prepare (!held)
#endif

proctype Expirer() if_alive {
end: do
    /* expiration/plan.py: by the window, or (only S1) by id, or because a ref keeps S0 */
    :: d_step { plan == NONE && plans < PLANS && !only && !held && !raised && !tag0 && (snaps & S0) && !(snaps & S2) ->
        seal(S0); say("expirer: plans the expiration of S0\n") }
    :: d_step { plan == NONE && plans < PLANS && !only && !held && !raised && !tag0 && (snaps & S0) && (snaps & S1) && !(snaps & S2) ->
        seal(S0 | S1); say("expirer: plans the expiration of S0 and S1\n") }
    :: d_step { plan == NONE && plans < PLANS && !held && (snaps & S1) && (only != 2 || tag0) -> seal(S1); say("expirer: plans the expiration of S1 alone, S0 stays\n") }
    :: d_step { plan == NONE && plans < PLANS && !held && (snaps & S2) -> seal(S2); say("expirer: plans the expiration of S2\n") }
#if COLD
    /* walk/cold_tier.py hand_off: copy, verify, publish; or it dies after the copies */
    :: d_step { plan == OPEN && may_prepare && !(on(TIERS) && same_place) ->
        if
        :: on(COPY_HANDOFF) -> copy_from_live()
        :: else -> cold = cold | (reads(promised) & live & ~is_in_ledger); ledger = ledger | (reads(promised) & live)
        fi;
        if
        :: same_place -> published = published | promised; plan = HANDED; say("expirer: hands the plan off to the place where it is\n")
        :: !same_place && (!(reads(promised) & ~has_copies) || (!on(COPY_HANDOFF) && !(reads(promised) & ~is_in_ledger))) ->
            published = published | promised; plan = HANDED; say("expirer: hands the plan off, cold has its snapshots\n");
            promise(readable(promised), "LOST (2): cold has not all files of a snapshot\n")
        :: else -> say("expirer: a file is gone, the handoff waits for a person\n")
        fi }
    :: d_step { plan == OPEN && crashes < CRASHES && !same_place -> copy_from_live(); crashes++; say("expirer: copies, and dies before it publishes\n") }
#endif
    /* walk/expiration.py commit_expiration: guards and base are read under the table's lock */
    :: d_step { plan == (COLD -> HANDED : OPEN) && !committing && lock == FREE && (px & snaps) && !held &&
        !(on(POLICY) && raised && (px & S0)) && !(on(REFS) && tag0 && (px & S0)) && !(on(NAMED) && named1 && (px & S0)) ->
#if COLD
        if :: on(COPY_COMMIT) && !same_place -> copy_from_live() :: else fi;
#endif
        if
        :: COLD && on(COPY_COMMIT) && !same_place && (reads(promised) & ~has_copies) -> say("expirer: a copy is lost, the commit waits\n")
        :: else -> look_seen = look_seen | cur | (tag0 -> reads(S0) : 0); lock = EXPIRER; committing = 1; swapped = 0; moved = 0; nx = snaps & ~px; ncur = cur;
            say("expirer: reads the pointer to commit\n")
        fi }
    :: d_step { committing && !swapped && !(on(CAS) && moved) ->
        say("expirer: swaps the pointer, the snapshots leave the table\n");
        promise(!moved, "LOST (1): the swap undoes another commit\n");
        promise(!(tag0 && (px & S0)), "LOST (1): a ref names the snapshot\n");
        promise(!(raised && (px & S0)), "LOST (1): the policy keeps the snapshot\n");
        promise(!(COLD && !same_place && !readable(promised & snaps)), "LOST (2): cold has not all files of a snapshot\n");
        promise(!(COLD && (promised & snaps & ~published)), "LOST (2): nobody archived the snapshot\n");
        snaps = nx; cur = ncur; ours = 1; swapped = 1 }
    :: d_step { committing && !swapped && on(CAS) && moved -> committing = 0; lock = FREE; say("expirer: lost the swap, tries again\n") }
    :: d_step { committing && swapped -> plan = COMMITTED; committing = 0; swapped = 0; lock = FREE; say("expirer: records its commit\n") }
    /* walk/expiration.py _unfinished: the snapshots are gone; by our swap, whose answer was lost, or by another tool? */
    :: d_step { (plan == OPEN || plan == HANDED) && !committing && !(px & snaps) && (plan == HANDED || !COLD || ours || !on(MADE_BY)) ->
        plan = COMMITTED; say("expirer: finds its snapshots gone, and takes the plan for committed\n") }
    /* deletion/identities.py first_look */
    :: d_step { plan == COMMITTED && !has_looked -> looked = live & at_path(pf); has_looked = 1; say("expirer: looks at the plan's files\n") }
    :: d_step { plan == COMMITTED && !due && !committing -> due = 1; say("clock: the grace is over\n") }
    /* walk/deletion.py delete_files */
    :: d_step { ((plan == COMMITTED && due) || plan == DELETING || (!on(SEALED) && plan == OPEN && !(px & snaps))) && !begun && !(on(HOLDS) && held) ->
        look_seen = look_seen | cur | (tag0 -> reads(S0) : 0); plan = DELETING; begun = 1; seen = reach;
        if :: !has_looked -> looked = live & at_path(pf); has_looked = 1 :: else fi;
        say("expirer: begins to delete\n") }
#if QUARANTINE
    /* deletion/quarantine.py set_aside: copied before the lock is taken */
    :: d_step { begun && !going && !set_aside && (pf & OLD) && !(done & OLD) && (live & at_path(OLD)) -> set_aside = live & at_path(OLD); say_of("expirer: copies file %d into quarantine\n", set_aside) }
    :: d_step { begun && lock == FREE && !going && (set_aside || !(live & at_path(OLD))) && (pf & OLD) && !(done & OLD) -> check(OLD) }
#else
    :: d_step { begun && lock == FREE && !going && (pf & OLD) && !(done & OLD) -> check(OLD) }
#endif
    :: d_step { begun && lock == FREE && !going && (pf & NEW) && !(done & NEW) -> check(NEW) }
    :: d_step { begun && lock == FREE && !going && (pf & SHARED) && !(done & SHARED) -> check(SHARED) }
    /* deletion/worker.py _remove: the lock and the age of the check are looked at right before the request */
    :: d_step { going ->
        if
        :: (on(LOCKED) && lock != EXPIRER) || (on(FRESH) && stale) -> say("expirer: the lock is lost, or the check too old: begins again\n"); begun = 0
        :: else ->
            f = live & at_path(going); say_of("expirer: deletes file %d\n", f); require(pf);
            live = live & ~f; done = done | at_path(going & pf);
#if QUARANTINE
            promise(!(f & (OLD | NEW) & ~set_aside), "LOST (3): what was copied into quarantine is another file\n"); aside = aside | set_aside;
#endif
        fi;
        going = 0; stale = 0; set_aside = 0; if :: lock == EXPIRER -> lock = FREE :: else fi }
    :: d_step { going && crashes < CRASHES && !stale && lock == EXPIRER ->
        f = live & at_path(going); say_of("expirer: deletes file %d, and dies before it says so\n", f); require(pf); live = live & ~f; aside = aside | set_aside;
        going = 0; begun = 0; lock = FREE; set_aside = 0; crashes++ }
    :: d_step { plan == DELETING && !(pf & ~done) && !going -> plan = DONE; begun = 0; say("expirer: the plan is done\n") }
    :: d_step { plan == DONE && plans < PLANS -> plan = NONE }
    /* a crash anywhere else */
    :: d_step { crashes < CRASHES && (committing || going || begun) ->
        crashes++; committing = 0; swapped = 0; begun = 0; going = 0; stale = 0; set_aside = 0;
        if :: lock == EXPIRER && on(DEAD_HOLDER) -> lock = FREE :: else fi; say("expirer: is killed\n") }
    od
}

/* --- others, of a table that expires ------------------------------------------------------------------------------------ */

/* A writer under a heartbeat commits a file that is there. Heartbeats and holds wait for the table's lock. */
proctype Beating() {
end: do
    :: d_step { wa == 0 && lock == FREE && (live & OLD) && wc != 1 -> wa = 1; waf = OLD; beat = beat | 1; say("writer A: begins a heartbeat, to use OLD\n") }
    :: d_step { wa == 0 && lock == FREE && (live & SHARED) -> wa = 1; waf = SHARED; beat = beat | 1; say("writer A: begins a heartbeat, to use SHARED\n") }
    :: d_step { wa == 1 -> wa = 2; cur = cur | waf; moved = 1; say("writer A: commits its file\n"); promise(!(waf & ~live), "LOST (1): it is gone\n") }
    :: d_step { wa == 2 -> wa = 3; beat = beat & 2; waf = 0; say("writer A: ends its heartbeat\n") }
    od
}

/* A writer without one. Assumed: it does not commit a doomed file between a check and its request, unless the worker is
   stopped in between (docs/protection.md, What it cannot see). */
#define no_window(path) (!(going & at_path(path)) || stale || lock == FREE)
proctype Plain() {
end: do
    :: d_step { wb == 0 && (live & OLD) && (no_window(OLD) || limit == WITHOUT_HEARTBEAT) && (limit == WITHOUT_HEARTBEAT || !going || stale) && !sgoing -> wb = 1; cur = cur | OLD; moved = 1; say("writer B: commits OLD again\n") }
    :: d_step { wb == 0 && (live & SHARED) && (!going || stale) && !sgoing -> wb = 1; cur = cur | SHARED; moved = 1; say("writer B: commits SHARED again\n") }
    od
}

/* A job that names its files itself writes an expired path again: in place, or by renaming an older file. */
proctype Job() {
end: do
    :: d_step { wc == 0 && !(reach & OLD) && wa != 1 && (plan == NONE || !(px & S0) || plan == COMMITTED || plan == DELETING || plan == DONE || plan == OPEN && !COLD) && (!going || stale) && !sgoing ->
        wc = 1; oldtime = 0; live = (live & ~OLD) | NEW; young = young | NEW; say("job: writes OLD's path again\n") }
    :: d_step { wc == 0 && !(reach & OLD) && wa != 1 && (plan == COMMITTED || plan == DELETING) && (has_looked || COLD || limit == BETWEEN_COMMIT_AND_LOOK) && (!SCANS || limit == RENAMED_IN_FLIGHT) && (!going || stale) && !sgoing ->
        wc = 1; oldtime = 1; live = (live & ~OLD) | NEW; say("job: renames a file of an older time to OLD's path\n") }
    :: d_step { wc == 1 -> wc = 2; say("job: commits the file at that path\n"); promise(live & NEW, "LOST (1): it is gone\n"); moved = 1;
        if :: PLANS > 1 -> snaps = snaps | S2 :: else -> cur = cur | NEW fi }
    od
}

/* Another tool expires in the metadata alone. */
proctype Tool() {
end: do
    :: d_step { tool == 0 && plan != NONE && !tag0 && (!named1 || limit == MOVED_REF_THEN_EXPIRED) && (snaps & S0) -> tool = 1; snaps = snaps & ~S0; moved = 1; say("another tool: expires S0 in the metadata\n") }
    :: d_step { tool == 0 && plan != NONE && !tag0 && (!named1 || limit == MOVED_REF_THEN_EXPIRED) && (snaps & S0) && (snaps & S1) -> tool = 1; snaps = snaps & ~(S0 | S1); moved = 1; say("another tool: expires S0 and S1 in the metadata\n") }
    od
}

/* People: a hold, a tag, a longer window. */
proctype People() {
end: do
    :: d_step { !held && lock == FREE -> held = 1; say("person: places a hold\n") }
    :: d_step { !tag0 && (snaps & S0) -> tag0 = 1; moved = 1; say("person: tags S0\n") }
    :: d_step { !raised && !committing && (snaps & S0) -> raised = 1; say("person: raises the window, it keeps S0\n") }
    od
}

/* The worker is stopped, or its session to Postgres ends, between a check and its request. */
proctype Fate() {
end: do
    :: d_step { going && !stale && !frozen -> frozen = 1; stale = 1; say("machine: the worker is stopped, and goes on much later\n") }
    :: d_step { going && lock == EXPIRER && !lost_lock -> lost_lock = 1; lock = FREE; say("Postgres: the lock's session ends\n") }
    od
}

/* The cold store loses a copy, or a copy is moved to the deep archive and the operations database forgets it. Assumed:
   not in the middle of a step of ours. */
proctype ColdStore() {
end: do
    :: d_step { !lost_copy && (cold & SHARED & live) && !committing && !going && !sgoing -> lost_copy = 1; cold = cold & ~SHARED; say("cold store: loses the copy of SHARED\n") }
    :: d_step { !lost_copy && (cold & OLD & live) && !committing && !going && !sgoing -> lost_copy = 1; cold = cold & ~OLD; say("cold store: loses the copy of OLD\n") }
    :: d_step { !lost_copy && (cold & SHARED) && plan == DONE && !sgoing -> lost_copy = 2; deep = deep | SHARED; dbdeep = dbdeep | SHARED; say("product: moves the copy of SHARED to the deep archive\n") }
    :: d_step { lost_copy == 2 && dbdeep && !going && !sgoing -> lost_copy = 3; dbdeep = 0; say("person: puts the operations database back, it forgets the move\n") }
    :: d_step { thin && !named1 && plan == HANDED && (px & S0) && (snaps & S1) -> named1 = 1; moved = 1; say("person: moves a lapsed ref from S0 to S1\n") }
    od
}

/* --- a reader: another table that takes up a file of this one ------------------------------------------------------------- */

proctype Reader() {
end: do
    :: d_step { rstate == 1 && !rmask && !runread && (live & OLD) && !going && !sgoing && !rheld -> rmask = OLD; say("reader: takes up OLD\n") }
    :: d_step { rstate == 1 && !rmask && !runread && (live & SHARED) && !going && !sgoing && !rheld -> rmask = SHARED; say("reader: takes up SHARED\n") }
    :: d_step { rstate == 1 && !runread && rseen != rmask -> rseen = rmask; say("product: looks at the reader\n") }
    :: d_step { rstate == 1 && rmask && !going && !sgoing -> rstate = 2; say("reader: is dropped, its files may still be registered again\n") }
    :: d_step { rstate == 1 && rmask && !runread && !going && !sgoing -> rstate = 3; rlost = rmask; rmask = 0; say("reader: its catalog is put back, the commit is lost\n") }
    :: d_step { rstate == 1 && rmask && !runread && !going && !sgoing -> runread = 1; say("reader: its newest metadata cannot be read for a while\n") }
    :: d_step { rstate == 1 && rmask && !runread && !going && !sgoing -> runread = 2; say("reader: none of its metadata can be read for a while\n") }
    :: d_step { runread -> runread = 0; say("reader: its metadata can be read again\n") }
    :: d_step { rstate == 1 && rmask && !runread && rseen == rmask && !rheld && !going && !sgoing -> rheld = rmask; rmask = 0; say("reader: is put on hold; then it overwrites and expires what it took up\n") }
    od
}

/* --- the product: orphan scan ------------------------------------------------------------------------------------------------ */

#define young_as_seen ((ahead -> 0 : young))
#define is_open (plan == OPEN || plan == HANDED || plan == COMMITTED || plan == DELETING)

/* What THEIRS is, and which guard keeps it. */
#define ATTEMPT_FILE     1
#define CHECKPOINT       2
#define THESIS           3
#define OTHER_LAYOUT     4
#define RECEIPT          5
#define VIEW             6
#define UNLISTED_VIEW    7
#define OF_DELTA         8
#define OF_PAIMON        9
#define OF_INNER        10
#define OF_DROPPED      11
#define OF_UNKNOWN      12
#define OF_FORMER       13
#define OF_SIBLING      14
#define SECOND_FILE     15
#define SECOND_FOLDER   16
#define OTHER_SCHEME    17
#define NOTHING_TELLS   18
#define NOT_COLLECTABLE 19
#define NOT_OWNED       20
#define UNREADABLE      21
#define KINDS           21
#define theirs_is_kept ( \
       (theirs == ATTEMPT_FILE && on(ATTEMPTS)) || (theirs == CHECKPOINT && on(HIDDEN)) || (theirs == THESIS && on(ROOTS)) \
    || (theirs == OTHER_LAYOUT && on(LAYOUT)) || (theirs == RECEIPT && on(RECEIPTS)) \
    || (theirs == VIEW && (on(VIEWS) || on(VIEW_FILES))) || (theirs == UNLISTED_VIEW && on(VIEW_FILES)) \
    || (theirs == OF_DELTA && on(DELTA)) || (theirs == OF_PAIMON && on(PAIMON)) || (theirs == OF_INNER && on(INSIDE)) \
    || (theirs == OF_DROPPED && on(DROPPED_INSIDE)) || (theirs == OF_UNKNOWN && on(UNKNOWN_INSIDE)) \
    || (theirs == OF_FORMER && on(HERE_BEFORE)) || (theirs == OF_SIBLING && (on(SIBLING_HERE) || on(HERE_BEFORE))) \
    || (theirs == SECOND_FILE && on(FILE_NAMES)) || (theirs == SECOND_FOLDER && on(FOLDER_NAMES)) \
    || (theirs == OTHER_SCHEME && on(PREFIX)) || (theirs == NOT_OWNED && on(OWNED)) || theirs == UNREADABLE)

/* protection/protection.py kept, for a listed file f. */
#define is_kept (unclear(STAYS) || (on(REACH) && (f & at_path(sr))) || (on(BEAT_ORPHANS) && beat) || (on(AGE) && (f & young_as_seen)) \
    || (on(OWN_METADATA) && (f & META)) || ((f & THEIRS) && theirs_is_kept) || (on(UNDELETES) && (f & undeleted)) \
    || (on(COPY_BATCH) && (f & reads(published) & ~has_copies)) || by_reader || (on(OPEN_PLANS) && is_open && (f & at_path(pf))) || (on(OPEN_PLANS) && on(UNARCHIVED) && COLD && plan == OPEN && (f & at_path(reads(px)))))
#define metadata_as_read ((theirs == UNREADABLE -> 0 : reach))

inline judge(file) {
    f = sl & (file);
    if :: f && !is_kept -> so = so | f :: else fi
}

inline scan_check(path) {
    lock = SCANNER; stale = 0; f = live & at_path(path);
    if :: on(REREAD) -> sr = metadata_as_read :: else fi;
    if
    :: (on(HOLDS) && held) || (on(CLOCKS) && ahead) -> sbegun = 0; lock = FREE; say("scanner: a hold, or the clock, stops it\n")
    :: else ->
        if
        :: f && !is_kept && !(on(LISTED) && (f & ~so)) -> sgoing = f; say_of("scanner: checks file %d: it may go\n", f)
        :: else -> sdone = sdone | at_path(path); lock = FREE; say_of("scanner: file %d is gone, or stays\n", path)
        fi
    fi
}
#define next(file) (sbegun && lock == FREE && !sgoing && (so & (file)) && !(sdone & (file)))

proctype Scanner() if_alive {
end: do
    /* orphans/scan.py: the listing ends, then the metadata is read */
    :: d_step { sstate == NONE && on(AFTER_LISTING) && may_prepare -> sl = live; sstate = LISTING; say("scanner: lists the table's folders\n") }
    :: d_step { sstate == NONE && !on(AFTER_LISTING) && may_prepare -> sr = metadata_as_read; sstate = LISTING; say("scanner: reads the metadata\n") }
    /* orphans/scan.py scan_orphans: a stop seals nothing */
    :: d_step { sstate == LISTING ->
        if :: on(AFTER_LISTING) -> sr = metadata_as_read :: else -> sl = live fi;
        if
        :: (on(CLOCKS) && ahead) || (on(EVIDENCE) && lost) || (on(OWN_UNREADABLE) && theirs == UNREADABLE) ||
            (on(GC_ENABLED) && theirs == NOT_COLLECTABLE) || (on(LIMITS) && theirs == NOTHING_TELLS && limit != HIGHER_LIMIT) ->
            sstate = NONE; sl = 0; sr = 0; say("scanner: stops, or waits for a person\n")
        :: else ->
            so = 0;
            judge(OLD); judge(NEW); judge(SHARED); judge(CURRENT); judge(LEFT); judge(AGAIN); judge(FUTURE); judge(META); judge(THEIRS);
            sstate = SEALED_SCAN; sdone = 0; say_of("scanner: judges what it listed, and seals the orphans: file %d\n", so)
        fi }
    /* walk/orphans.py delete_orphans */
    :: d_step { sstate == SEALED_SCAN && !sbegun && (so & ~sdone) && !(on(HOLDS) && held) -> sbegun = 1; say("scanner: begins to delete\n") }
    :: d_step { next(OLD) -> scan_check(OLD) }
    :: d_step { next(NEW) -> scan_check(NEW) }
    :: d_step { next(SHARED) -> scan_check(SHARED) }
    :: d_step { next(CURRENT) -> scan_check(CURRENT) }
    :: d_step { next(LEFT) -> scan_check(LEFT) }
    :: d_step { next(AGAIN) -> scan_check(AGAIN) }
    :: d_step { next(FUTURE) -> scan_check(FUTURE) }
    :: d_step { next(META) -> scan_check(META) }
    :: d_step { next(THEIRS) -> scan_check(THEIRS) }
    :: d_step { sgoing ->
        if
        :: (on(LOCKED) && lock != SCANNER) || (on(FRESH) && stale) -> sbegun = 0; say("scanner: the lock is lost, or the check too old: begins again\n")
        :: else ->
            f = live & at_path(sgoing); say_of("scanner: deletes file %d\n", f); require(so);
            live = live & ~f; sdone = sdone | at_path(sgoing)
        fi;
        sgoing = 0; stale = 0; if :: lock == SCANNER -> lock = FREE :: else fi }
    :: d_step { sstate == SEALED_SCAN && !(so & ~sdone) && !sgoing -> sstate = DONE; sbegun = 0; say("scanner: the scan is done\n") }
#ifdef NIGHTS
    :: d_step { sstate == DONE -> sstate = NONE; sl = 0; sr = 0; so = 0; sdone = 0; say("scanner: another night\n") }
#endif
    :: d_step { crashes < CRASHES && (sstate == LISTING || sbegun) ->
        crashes++; sbegun = 0; sgoing = 0; stale = 0; if :: sstate == LISTING -> sstate = NONE; sl = 0; sr = 0 :: else fi;
        if :: lock == SCANNER -> lock = FREE :: else fi; say("scanner: is killed\n") }
    od
}

/* --- others, of a table that is scanned ---------------------------------------------------------------------------------------- */

/* Who left LEFT. wl: 0 nobody any more; 1 a slow writer, under a heartbeat, 3 a quick one, without: it ends before its
   file is min_age old; 5 one that writes the path again. */
proctype Left() {
end: do
    :: d_step { wl == 0 && lock == FREE && (live & LEFT) -> wl = 1; beat = beat | 2; say("writer: begins a heartbeat, to commit LEFT\n") }
    :: d_step { wl == 1 -> wl = 2; cur = cur | LEFT; moved = 1; say("writer: commits LEFT\n"); promise(live & LEFT, "LOST (1): it is gone\n") }
    :: d_step { wl == 2 && (beat & 2) -> beat = beat & 1; say("writer: ends its heartbeat\n") }
    :: d_step { wl == 3 -> wl = 4; cur = cur | LEFT; moved = 1; say("writer: commits LEFT, which is young\n"); promise(live & LEFT, "LOST (1): it is gone\n") }
    :: d_step { wl == 3 -> wl = 0; say("writer: dies\n") }
    :: d_step { wl == 0 && !(sgoing & LEFT) -> wl = 5; live = (live & ~LEFT) | AGAIN; young = young | AGAIN; say("writer: writes LEFT's path again\n") }
    :: d_step { wl == 5 -> wl = 6; cur = cur | AGAIN; moved = 1; say("writer: commits the file at LEFT's path\n"); promise(live & AGAIN, "LOST (1): it is gone\n") }
    #ifndef NIGHTS
    :: d_step { !ahead -> ahead = 1; say("Postgres: its clock goes 30 days ahead\n") }
#endif
    od
}

/* A quick writer ends before its file is min_age old. */
proctype Time() {
end: do
    :: d_step { young && wl != 3 && wl != 5 && wc != 1 -> young = 0; say("clock: min_age passes\n") }
    od
}

/* A commit with a new file, or that of LEFT; then the catalog is put back to before it, from a backup. */
proctype Backup() {
end: do
    :: d_step { fl == 0 -> fl = 1; live = live | FUTURE; cur = cur | FUTURE; young = young | FUTURE; moved = 1; say("writer: commits a new file\n") }
    :: d_step { fl <= 1 && (cur & ~CURRENT) && !sgoing && (sstate != SEALED_SCAN || !(so & cur) || limit == SCAN_THEN_RESTORE) ->
        fl = 2; lost = cur & ~CURRENT; cur = CURRENT; say("person: puts the catalog back to before the commit\n") }
    :: d_step { fl == 2 && lost && !going && !sgoing -> fl = 3; cur = cur | lost; say("person: registers the lost metadata file\n"); promise(!(lost & ~live), "LOST (1): a file of that commit is gone\n"); lost = 0 }
    :: d_step { fl == 2 && lost -> fl = 3; lost = 0; say("person: settles, the commit stays lost\n") }
    od
}

/* The catalog of a table that expires is put back to its first state. A tag may be the product's own commit
   (expiration/tags_and_holds.py). */
proctype PutBack() {
end: do
    :: d_step { !tag0 && lock == FREE && fl == 0 && (snaps & S0) -> tag0 = 1; moved = 1; own_seen = OLD | SHARED; say("person: tags S0 through the product\n") }
    :: d_step { fl == 0 && !going && !sgoing -> fl = 2; lost = lost | cur | (tag0 -> (OLD | SHARED) : 0); lost = lost & ~CURRENT;
        snaps = S0 | S1; cur = CURRENT; tag0 = 0; ours = 0; moved = 1; say("person: puts the catalog back to its first state\n") }
    :: d_step { fl == 0 && !going && !sgoing && (cur & ~CURRENT) -> fl = 2; lost = lost | (cur & ~CURRENT); cur = CURRENT; moved = 1; say("person: puts the catalog back to before the writers' commits\n") }
    :: d_step { fl == 2 && lost && !going && !sgoing -> fl = 3; cur = cur | lost; moved = 1; say("person: registers the lost metadata file\n"); promise(!(lost & lost_is_needed & ~live), "LOST (1): a file of that commit is gone\n"); lost = 0 }
    :: d_step { fl == 2 && lost -> fl = 3; lost = 0; say("person: settles, the commit stays lost\n") }
    od
}

/* Time goes on, also when nobody else can: a run without an end is what liveness is about. */
bool night;
proctype Nights() {
    do
    :: d_step { night = !night }
    od
}

proctype Hold() {
end: do
    :: d_step { !held && lock == FREE -> held = 1; say("person: places a hold\n") }
    od
}

/* A person wants an expired file back from quarantine: walk/quarantine.py undelete. */
proctype Undelete() {
end: do
    :: d_step { plan == DONE && (aside & OLD) && !undeleted && !(live & at_path(OLD)) && lock == FREE ->
        live = live | OLD; undeleted = OLD; aside = aside & ~OLD; say("person: puts OLD back from quarantine\n") }
    od
}

/* --- whole tables: dropped, swept, of two deployments --------------------------------------------------------------------------- */

/* A table's files as one, `its`. Where it is: it is there; dropped; registered again; it lives in another catalog. */
#define THERE     1
#define DROPPED   2
#define BACK      3
#define ABROAD    4
byte table = THERE;
bool its = 1, its_hold, made_anew, marked, keep_over, observed, judged, hold2;
mtype dscan = NONE, sweep = NONE, plan2 = NONE;

#define its_loss(words) promise(table != THERE && table != BACK, "LOST (1): the table has it\n"); promise(table != ABROAD, "LOST (1): another catalog has the table\n"); \
    promise(keep_over || words, "LOST (1): the table was dropped, and may still be registered again\n"); promise(!its_hold, "LOST (4): the table is on hold\n")

proctype Table() {
end: do
    :: d_step { table == THERE && !observed -> observed = 1; say("product: looks at the catalog\n") }
    :: d_step { table == THERE && dscan == NONE && observed && !judged -> table = DROPPED; say("person: drops the table\n") }
    :: d_step { table == DROPPED && !keep_over -> keep_over = 1; say("clock: dropped.keep is over\n") }
    :: d_step { table == DROPPED && its && !judged -> table = BACK; say("person: registers the table again\n") }
    :: d_step { table == DROPPED && its && !judged -> table = ABROAD; say("writer: commits to the table in another catalog, where it was registered\n") }
    :: d_step { table == DROPPED && !made_anew -> made_anew = 1; say("person: makes a table of the same name and place\n") }
    :: d_step { table == DROPPED && lock == FREE && its && !its_hold -> its_hold = 1; say("person: places a hold on the dropped table\n") }
    od
}

/* walk/dropped.py: scan, approval, deletion; protection/absence.py require asks for the uuid again before each batch. */
proctype Dropper() {
end: do
    :: d_step { dscan == NONE && table == DROPPED && observed && keep_over && !its_hold -> dscan = SEALED_SCAN; say("dropper: scans the dropped table\n") }
    :: d_step { dscan == SEALED_SCAN && lock == FREE && !judged && its && !(on(HOLDS) && its_hold) && !(on(ABSENT) && table == BACK) && !(on(ELSEWHERE) && table == ABROAD) ->
        lock = SCANNER; judged = 1; say("dropper: checks the table's files, they may go\n") }
    :: d_step { judged && lock == SCANNER -> say("dropper: deletes them\n"); its_loss(false); its = 0; judged = 0; lock = FREE; dscan = DONE }
    :: d_step { judged && lock == SCANNER && crashes < CRASHES -> crashes++; judged = 0; lock = FREE; say("dropper: is killed\n") }
    od
}

/* walk/live_sets.py: mark notes what the catalog's tables reach, sweep deletes what none reaches; by uuid, not by name. */
proctype Sweeper() {
end: do
    :: d_step { sweep == NONE && table == THERE -> sweep = OPEN; say("sweeper: marks what the table reaches\n") }
    :: d_step { sweep == OPEN && its && made_anew && !on(NAME) -> sweep = DONE; say("sweeper: finds the table by its name, and deletes what it does not reach\n"); its_loss(keep_over); its = 0 }
    :: d_step { sweep == OPEN && made_anew && on(NAME) -> sweep = DONE; say("sweeper: does not find the table, and leaves its files\n") }
    od
}

/* A second deployment, with an operations database of its own: it does not see the hold of the first. `hold2` is one. */
proctype Second() {
end: do
    :: d_step { table == THERE && !hold2 && lock == FREE && plan2 != DONE -> hold2 = 1; say("person: places a hold, in the first deployment\n") }
    :: d_step { table == THERE && plan2 == NONE && !on(DEPLOYMENT) -> plan2 = COMMITTED; say("second deployment: plans and commits an expiration\n"); promise(!hold2, "LOST (4): the table is on hold\n") }
    od
}

/* --- what others do, in a replay ------------------------------------------------------------------------------------------------------ */

#ifdef REPLAY
/* Between two steps of the product, so that none is at work: what a trace says of the world then, by bits. Nothing here
   asks whether the model's own writers, people and tools may do so. */
proctype Others() if_alive {
end: do
    :: d_step { entry >= FACTS ->
        facts = entry - FACTS; moved = 1;
        live = (live & ~(OLD | NEW)) | (facts & (OLD | NEW));
        snaps = ((facts & IN_OLDER) -> S0 : 0); cur = CURRENT | ((facts & IN_KEPT) -> (OLD | NEW) : 0);
        tag0 = (facts & NAMED_BY_REF) != 0; held = (facts & ON_HOLD) != 0; beat = ((facts & BEATS) -> 1 : 0);
        rkind = 1; rstate = 1; rmask = ((facts & READ_ELSEWHERE) -> (OLD | NEW) : 0);
        young = ((facts & YOUNG) -> (OLD | NEW) : 0); oldtime = (facts & YOUNG) == 0;
        cold = ((facts & COPIED) -> cold | OLD : cold & ~(OLD | NEW)); ledger = ledger | cold;
        given_up = (facts & GIVEN_UP) != 0;
        lock = FREE; committing = 0; swapped = 0; begun = 0; going = 0; set_aside = 0; sbegun = 0; sgoing = 0;
        if :: sstate == LISTING -> sstate = NONE :: else fi;
        c_code { next_entry(now.chosen, &now.at, &now.entry); } }
    :: d_step { entry == CLOSED && plan != NONE -> plan = NONE; begun = 0; say("person: closes the plan, or another takes its place\n") }
    :: d_step { entry == LEFT_ALONE && sstate != NONE -> sstate = NONE; so = 0; sdone = 0; sl = 0; sr = 0; sbegun = 0; say("person: leaves the scan alone\n") }
    :: d_step { true -> c_code { is_over(now.chosen, now.at); }; over = 1 }   /* notes how far the trace is one of the model's */
    od
}
#endif

/* --- scopes ------------------------------------------------------------------------------------------------------------------------ */

inline take_out() {
    c_code {
        if (getenv("OUT1")) now.out1 = atoi(getenv("OUT1"));
        if (getenv("OUT2")) now.out2 = atoi(getenv("OUT2"));
        if (getenv("OUT3")) now.out3 = atoi(getenv("OUT3"));
        if (getenv("LIMIT")) now.limit = atoi(getenv("LIMIT"));
        if (getenv("ONLY")) now.only = atoi(getenv("ONLY"));
    }
}

init {
    atomic {
        take_out();
#if defined(EXPIRE)
        run Expirer(); run Beating(); run Plain(); run Job(); run Tool(); run People(); run Fate()
#elif defined(ARCHIVE)
        if :: thin = 1 :: same_place = 1 :: skip fi;
        run Expirer(); run Job(); run Tool(); run ColdStore(); run Scanner(); run Time()
#elif defined(READERS)
        select(rkind : 1 .. 8); rstate = 1; say_of("world: the other table is reader %d\n", rkind);
        run Expirer(); run Reader()
#elif defined(ORPHANS)
        live = live | LEFT | META;
        if :: young = LEFT; wl = 3 :: young = LEFT :: skip fi;
        run Scanner(); run Left(); run Backup(); run Fate(); run Hold(); run Time()
#elif defined(PLACES)
        select(theirs : 1 .. KINDS); live = live | META | THEIRS; say_of("world: THEIRS is kind %d\n", theirs);
        run Scanner()
#elif defined(RESTORE)
        run Expirer(); run Plain(); run Beating(); run PutBack()
#elif defined(TABLES)
        run Table(); run Dropper(); run Sweeper(); run Second()
#elif defined(WHOLE)
        rkind = 1; rstate = 1; live = live | LEFT;
        run Expirer(); run Scanner(); run Reader(); run Beating(); run Tool(); run Time()
#elif defined(DOOMED)
        run Expirer(); run Beating(); run Plain(); run Tool(); run Nights()
#elif defined(LEAKED)
        live = live | LEFT | META; if :: wl = 3; young = LEFT :: skip fi;
        run Scanner(); run Left(); run Time(); run Backup()
#elif defined(UNDELETE)
        run Expirer(); run Scanner(); run Job(); run Undelete(); run Time()
#elif defined(REPLAY)
        live = CURRENT; snaps = 0; c_code { now.traces = load(); };
        do :: chosen < traces - 1 -> chosen++ :: break od;
        c_code { next_entry(now.chosen, &now.at, &now.entry); };
        run Expirer(); run Scanner(); run Others()
#endif
    }
}

/* Liveness, under weak fairness of the processes: from some time on, these files are there only if the table reads them. */
#ifdef DOOMED
ltl goes { <> [] ((live & OLD) == 0 || (px & S0) == 0 || (snaps & S0) != 0 || (cur & OLD) != 0) }
#elif defined(LEAKED)
ltl goes { <> [] ((live & (LEFT | AGAIN)) == 0 || (cur & (LEFT | AGAIN)) != 0) }
#endif
