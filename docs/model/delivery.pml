/*
 * One channel from a sender to one recipient through the adapter, with
 * crashes between any two steps. What internal/adapter promises is asserted
 * here over every interleaving; run it with "make model".
 *
 * Kept small on purpose: N messages, a queue of Q, R tries, C crashes. The
 * disk is what a transaction wrote; memory is lost in a crash and read from
 * the disk. One step of the writer is one transaction: that it is atomic and
 * durable is SQLite's promise, and what the tests with a simulated disk show.
 */
#define N 4   /* messages, numbered from 1 in the order in which they are sent */
#define Q 2   /* places in the queue */
#define R 2   /* deliveries of one message before it is dead */
#define C 2   /* crashes */

/* there is something to deliver */
#define ready (disk[1] == PENDING || disk[2] == PENDING || disk[3] == PENDING || disk[4] == PENDING)

/* state of a delivery on the disk */
#define NONE    0
#define PENDING 1
#define ACKED   2
#define DEAD    3

byte disk[N+1];       /* there is something to deliver */
#define ready (disk[1] == PENDING || disk[2] == PENDING || disk[3] == PENDING || disk[4] == PENDING)

/* state of each delivery */
byte tries[N+1];      /* leases that were given, on the disk */
byte lease;           /* the message that is leased, or 0; on the disk, too */
byte last;            /* the last sequence; on the disk */
bit  critical[N+1];   /* never evicted */

bit  told[N+1];       /* the sender has its 201 */
bit  seen[N+1];       /* the recipient got it at least once */
bit  confirmed[N+1];  /* the recipient's acknowledgement was answered */
bit  noticed[N+1];    /* a dead letter was told to the sender */
byte highest;         /* the highest that the recipient has seen */
byte crashes;
bit  done;            /* nothing is pending and the sender has ended */

inline depth(d) {
	d = 0; k = 1;
	do :: k > N -> break
	   :: else -> d = d + (disk[k] == PENDING -> 1 : 0); k++
	od; k = 0
}

/* the oldest one that may be evicted, or 0 */
inline victim(v) {
	v = 0; k = N;
	do :: k == 0 -> break
	   :: else -> if :: disk[k] == PENDING && !critical[k] -> v = k :: else fi; k--
	od; k = 0
}

/* the first pending: only that one may be leased, and only when nothing is */
inline first(f) {
	f = 0; k = N;
	do :: k == 0 -> break
	   :: else -> if :: disk[k] == PENDING -> f = k :: else fi; k--
	od; k = 0
}

inline giveup(m) {
	disk[m] = DEAD; noticed[m] = 1; /* the notice is in the same transaction */
	if :: lease == m -> lease = 0 :: else fi
}

/* The sender has one key for each message and asks with it until it has an
 * answer. The answer can be lost: then it asks again for what is taken. */
active proctype sender() {
	byte m = 1, d, v, k;
	do
	:: m > N -> break
	:: m <= N ->
		atomic {
			if
			:: disk[m] != NONE -> skip            /* a duplicate: the first answer again */
			:: disk[m] == NONE ->
				depth(d); v = 0;
				if
				:: d < Q -> d = 0
				:: else -> victim(v); d = (v == 0 -> 1 : 0)
				fi;
				if
				:: d == 1 -> skip                   /* 429: nothing is taken */
				:: else ->
					if :: v -> giveup(v) :: else fi;
					assert(last == m - 1);      /* gapless */
					last = m; disk[m] = PENDING;
					if :: critical[m] = 1 :: critical[m] = 0 fi
				fi
			fi;
			v = 0; d = 0
		}
		if
		:: atomic { disk[m] != NONE -> told[m] = 1; m++ }
		:: crashes < C -> crashes++                  /* the answer is lost */
		:: disk[m] == NONE -> skip                   /* refused: again later */
		fi
	od
}

/* The recipient leases, and acknowledges, refuses, or goes away. Its answers
 * can be lost, too. */
active proctype recipient() {
	byte f, k;
	do
	:: atomic { lease == 0 && ready ->
		first(f);
		assert(disk[f] == PENDING && !confirmed[f]);   /* nothing that was confirmed comes again */
		lease = f; tries[f]++ }
		if
		:: atomic { true ->                              /* it arrives */
			/* order: a new one is never before one that was seen, */
			assert(seen[f] || f > highest);
			/* and what is before it has ended */
			assert(f == 1 || disk[f-1] != PENDING);
			seen[f] = 1;
			if :: f > highest -> highest = f :: else fi }
			if
			:: atomic { lease == f -> disk[f] = ACKED; lease = 0;
				if :: confirmed[f] = 1
				   :: crashes < C -> crashes++    /* its answer is lost: it stays acknowledged */
				fi }
			:: atomic { lease == f -> lease = 0;    /* refused or expired */
				if :: tries[f] >= R -> giveup(f) :: else fi }
			:: lease != f -> skip                   /* evicted meanwhile: the lease is over */
			fi
		:: atomic { crashes < C -> crashes++;           /* the delivery is lost on its way */
			if :: lease == f -> lease = 0; if :: tries[f] >= R -> giveup(f) :: else fi
			   :: else fi }
		fi; f = 0
	:: atomic { last == N && lease == 0 && !ready -> done = 1; break }
	od;
	/* The end: everything that the sender was told about was seen, or it was told again. */
	atomic {
		k = 1;
		do
		:: k > N -> break
		:: else ->
			assert(disk[k] == ACKED || disk[k] == DEAD);
			assert(disk[k] != ACKED || seen[k]);
			assert(disk[k] != DEAD || noticed[k]);
			assert(!confirmed[k] || disk[k] == ACKED);
			k++
		od
	}
}

/* Every run comes to its end when refusals and crashes do. */
ltl ends { <> done }
